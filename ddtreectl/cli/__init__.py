"""The command line: reads words, prints results, maps outcomes to exit codes. No logic."""
