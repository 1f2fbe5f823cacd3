"""Notes on few-shot scores whose classes have fewer images than shots."""

from collections.abc import Sequence

from transfer.records.record import Record
from transfer.report.tables.table import Note, NoteKind


def few_image_notes(records_of_rows: Sequence[Sequence[Record]]) -> list[Note]:
    """Return a note for each data set and number of shots that some of its classes cannot give.

    Args:
        records_of_rows: the runs behind each row of the table.
    """
    rows: dict[tuple[str, str, int], list[int]] = {}
    for row, records in enumerate(records_of_rows):
        for record in records:
            support = record.details.get("support")
            fewer = support.get("classes_with_fewer") if isinstance(support, dict) else None
            for shots, classes in fewer.items() if isinstance(fewer, dict) else ():
                if classes:
                    places = rows.setdefault((str(record.dataset.get("name")), str(shots), int(classes)), [])
                    places += [row] if row not in places else []
    return [
        Note(
            NoteKind.READING,
            f"{classes} class{'es have' if classes > 1 else ' has'} fewer than {shots} training images, and the probe "
            "takes all of them",
            f"accuracy_{shots}shot on {dataset}",
            tuple(places),
            (f"accuracy_{shots}shot",),
        )
        for (dataset, shots, classes), places in rows.items()
    ]
