"""From a request to the service of one slot."""

from ddtreectl.apply.roll_journal import Request
from ddtreectl.inventory.model import Inventory
from ddtreectl.inventory.select import Place, service_for
from ddtreectl.inventory.service import ServiceSpec


def service_of(inventory: Inventory, place: Place, request: Request) -> ServiceSpec:
    """The service that a request means in a slot: the inventory's, with what it changes.

    Raises:
        UsageError: a value is out of range.
    """
    return service_for(
        inventory,
        place,
        request.mode,
        budget=request.budget,
        topk=request.topk,
        model=request.model,
        drafter=request.drafter,
    )
