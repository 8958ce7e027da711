"""World files: read, checked before Gazebo sees them, and prepared for lock-step.

Gazebo loads its empty world, silently, in place of one that it cannot read.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from rl_twoclocks.nearest import nearest

STEP = 0.001
"""Seconds per iteration of the physics, by the Gazebo row of the safe table."""
_REFUSED = {
    "dart": "resets of sliding joints are ignored there",
    "simbody": "resets of sliding joints are ignored there",
    "bullet": "it was never tried",
}


@dataclass(frozen=True)
class WorldFile:
    """A world file that can be run."""

    path: Path
    root: Element

    @classmethod
    def read(cls, name: str | Path) -> WorldFile:
        """Read and check a world.

        Raises:
            ValueError: there is no such file, it is no world, or its physics cannot be used.
        """
        path = Path(name).expanduser().absolute()
        if not path.is_file():
            raise ValueError(f"world={name}: there is no such file{_nearest(path)}")
        try:
            root = ElementTree.parse(path).getroot()
        except (ElementTree.ParseError, UnicodeDecodeError) as error:
            raise ValueError(f"world={name} is not XML: {error}") from error
        if root.tag != "sdf" or root.find("world") is None:
            raise ValueError(f"world={name} holds no <sdf><world>: its root is <{root.tag}>")
        if len(root.findall("world")) > 1:
            raise ValueError(f"world={name} holds several worlds: give one")
        found = cls(path, root)
        for physics in found.world.findall("physics"):
            engine = physics.get("type", "ode")
            if engine != "ode":
                why = _REFUSED.get(engine, "Gazebo has no such engine")
                raise ValueError(f'world={name}: <physics type="{engine}">: {why}; write "ode"')
        return found

    @property
    def world(self) -> Element:
        """The one <world>."""
        world = self.root.find("world")
        assert world is not None
        return world

    @property
    def step(self) -> float:
        """Seconds per iteration that the file asks for.

        Raises:
            ValueError: that is no number.
        """
        # 0.001 is also what Gazebo takes where a file says nothing.
        texts = [e.text or "" for e in self.world.iterfind("physics/max_step_size")] or ["0.001"]
        try:
            steps = {float(text) for text in texts}
        except ValueError:
            raise ValueError(f"world={self.path}: <max_step_size> {texts} is no number") from None
        # Profiles that differ: the one that is farthest off is what a check is to see.
        return max(steps, key=lambda step: abs(step - STEP))

    @property
    def joints(self) -> set[str]:
        """Names of the joints that can move, those of included models left out."""
        joints = (joint for model in self.world.iter("model") for joint in model.findall("joint"))
        moving = (j for j in joints if j.get("type") in ("revolute", "prismatic", "continuous"))
        return {name for joint in moving if (name := joint.get("name"))}

    def prepared(self, step: float, plugin: Path) -> str:
        """The world's text with a physics step, at full speed, and with the lock-step plugin."""
        root = ElementTree.fromstring(ElementTree.tostring(self.root))
        world = root.find("world")
        assert world is not None
        for physics in world.findall("physics") or [SubElement(world, "physics", type="ode")]:
            for tag, text in (("max_step_size", repr(step)), ("real_time_update_rate", "0")):
                element = physics.find(tag)
                if element is None:
                    element = SubElement(physics, tag)
                element.text = text
        SubElement(world, "plugin", name="lockstep", filename=str(plugin))
        return ElementTree.tostring(root, encoding="unicode")


def _nearest(path: Path) -> str:
    if not path.parent.is_dir():
        return ""
    names = [p.name for p in path.parent.iterdir() if p.suffix in (".world", ".sdf")]
    near = nearest(path.name, names)
    return f": did you mean {path.with_name(near[0])}?" if near else ""
