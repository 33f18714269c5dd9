"""The flame graphs of `./dev bench --profile`."""

from xml.etree import ElementTree as ET

from bench.flame_graph import flame_graph

SVG = "{http://www.w3.org/2000/svg}"


def test_a_frame_is_as_wide_as_its_share_and_stands_on_its_caller() -> None:
    root = ET.fromstring(
        flame_graph("web <1>", ["main;read (a.py) 30", "main;write (b.py);send 60", "idle 10"])
    )
    boxes = {}
    for group in root.iter(f"{SVG}g"):
        title, box = group.find(f"{SVG}title"), group.find(f"{SVG}rect")
        if title is not None and box is not None:
            name = str(title.text).rpartition(" (")[0]
            boxes[name] = {key: float(box.get(key, "")) for key in ("x", "y", "width")}
    total = boxes["all"]["width"]
    assert boxes["main"]["width"] / total == 0.9
    assert round(boxes["send"]["width"] / total, 3) == 0.6
    assert boxes["send"]["x"] == boxes["write (b.py)"]["x"] > boxes["main"]["x"]
    assert boxes["all"]["y"] > boxes["main"]["y"] > boxes["write (b.py)"]["y"] > boxes["send"]["y"]
