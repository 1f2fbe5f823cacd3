"""stub"""


def report(sweep, sweeper, searches):
    return "\n".join(f"{p.cell.name} {p.status} {p.seconds:.0f}" for p in sweeper.cells.values())
