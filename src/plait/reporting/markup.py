"""HTML as a tree: whatever text goes in is escaped on the way out, so there is nothing to forget."""

from __future__ import annotations

from xml.etree import ElementTree
from xml.etree.ElementTree import Element

Child = Element | str


def tag(name: str, /, *children: Child, **attributes: str | int) -> Element:
    """An element. `class_` and the like lose their last underscore, others become hyphens: `aria_label`."""
    made = Element(name, {key.rstrip("_").replace("_", "-"): str(value) for key, value in attributes.items()})
    return add(made, *children)


def add(parent: Element, *children: Child) -> Element:
    for child in children:
        if isinstance(child, Element):
            parent.append(child)
        elif len(parent):
            parent[-1].tail = (parent[-1].tail or "") + child
        else:
            parent.text = (parent.text or "") + child
    return parent


def text_of(element: Element) -> str:
    return ElementTree.tostring(element, encoding="unicode", method="html")
