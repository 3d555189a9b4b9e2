"""What is true of a host. A fact is a shell command and a parser of its output, nothing else.

Parsers are total: whatever the command says, they return a value and never raise. What a tool did
not say is None, which is neither yes nor no.
"""
