"""The Python interface: what `import transfer` offers, loaded when it is first asked for.

Each function goes the way of the command of its name, from checked options to records. What the functions do lives in
the rooms below; the command line does not come through here.
"""
