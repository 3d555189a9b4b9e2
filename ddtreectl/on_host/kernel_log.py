"""What the kernel has said of GPUs since boot."""

import os
import time

from ddtreectl.on_host.commands import said, there


def tell_kernel_log(read: int, passed_on: int) -> None:
    """Print time, uptime, and the lines of the driver with their times; nothing without a GPU.

    Args:
        read: the newest lines of the boot that are read.
        passed_on: how many of those about GPUs are printed.
    """
    driver = any(map(os.path.exists, ("/proc/driver/nvidia", "/sys/module/nvidia")))
    if not driver and there("nvidia-smi") is None:
        return
    with open("/proc/uptime", encoding="utf-8") as file:
        print("now", int(time.time()), file.read().split()[0])
    journal = ["journalctl", "-k", "-b", "-q", "-o", "short-unix", "--no-pager", "-n"]
    for source, argv in (("journal", [*journal, str(read)]), ("dmesg", ["dmesg"])):
        if there(argv[0]) is None:
            continue
        status, text = said(argv)
        if status != 0:
            continue
        print(source)
        lines = [line for line in text.split("\n") if about_gpus(line)]
        for line in lines[-passed_on:]:
            print(line)
        return


def about_gpus(line: str) -> bool:
    """Whether a line is the driver's, or tells of an NVSwitch that has failed."""
    return "NVRM" in line or " Fatal" in line.partition("SXid")[2]
