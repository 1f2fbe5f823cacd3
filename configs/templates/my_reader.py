# my_reader.py: files such as red_0012.png; every N-th image of a class is for validation
def read(root, *, every):
    rows = {"train": [], "val": []}
    for path in sorted(root.glob("*.png")):
        name, number = path.stem.split("_")
        rows["train" if int(number) % every else "val"].append((path, name))
    return rows
