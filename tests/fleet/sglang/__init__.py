"""The stand-in for SGLang on hosts of the lab."""
