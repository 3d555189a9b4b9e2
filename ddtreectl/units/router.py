"""The unit of a fleet's router, `smg`."""

from jinja2 import TemplateError

from ddtreectl import __version__
from ddtreectl.errors import DdtreectlError
from ddtreectl.inventory.router import RouterSettings
from ddtreectl.units import confinement, escape
from ddtreectl.units.templates import templates

STOP_MARGIN = 15
"""smg keeps its port open for 5 s before it ends; then it waits for requests in progress."""

REREAD_SECONDS = 2
HEALTH_SECONDS = 2


def argv(executable: str, workers: str, settings: RouterSettings) -> list[str]:
    """The words that start the router.

    Args:
        executable: the absolute path of `smg`.
        workers: the list of workers, which it reads as soon as it changes.
        settings: its section of the inventory.
    """
    return [
        *(executable, "launch"),
        *("--host", settings.address, "--port", str(settings.port)),
        *("--policy", settings.policy),
        *("--discovery-provider", "file", "--discovery-file", workers),
        *("--discovery-check-interval-secs", str(REREAD_SECONDS)),
        *("--worker-startup-check-interval", "1"),
        *("--health-check-endpoint", settings.health),
        *("--health-check-interval-secs", str(HEALTH_SECONDS)),
        *("--health-failure-threshold", "2", "--health-success-threshold", "1"),
        *("--request-timeout-secs", str(settings.request_timeout)),
        *("--shutdown-grace-period-secs", str(settings.drain_timeout)),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(settings.metrics_port)),
        # It passes text on: tokenizers, stored responses and SGLang's load polls are not needed.
        *("--disable-tokenizer-autoload", "--disable-load-monitoring", "--history-backend", "none"),
        *("--log-level", "warn"),  # `info` has several lines for each request
    ]


def render(folder: str, workers: str, settings: RouterSettings) -> str:
    """The unit file.

    Args:
        folder: the router's environment.
        workers: the list of workers.
        settings: its section of the inventory.

    Raises:
        DdtreectlError: a value has no place in a unit, or the template is broken.
    """
    what = f"Router of the fleet's services, port {settings.port} (smg {settings.version})"
    try:
        return (
            templates()
            .get_template("router.service.j2")
            .render(
                version=__version__,
                description=escape.setting(what),
                exec_start=escape.exec_line(argv(f"{folder}/bin/smg", workers, settings)),
                stop_timeout=settings.drain_timeout + STOP_MARGIN,
                confinement=confinement.lines(confinement.settings(None)),
                environment_name=escape.setting(folder.rpartition("/")[2]),
            )
        )
    except (escape.EscapeError, TemplateError) as error:
        raise DdtreectlError("the router's unit cannot be rendered", cause=str(error)) from error
