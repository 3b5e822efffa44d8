"""Converts annotations to Perfetto's track events, each annotation on a separate track."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from augment.arrays.ordering import numbered
from augment.arrays.types import Int64s
from augment.core.annotations import Annotation, CounterTrack, Flows, InstantTrack, SliceTrack, Texts
from augment.writers.perfetto.added import AddedTracks
from augment.writers.perfetto.args import ArgsEncoder, Interned
from augment.writers.perfetto.encoding import slice_args
from augment.writers.perfetto.packets import Blobs, Events, column, counters, slices
from augment.writers.perfetto.suffixes import NO_SUFFIXES, Suffixes, colours, with_suffixes
from augment.writers.perfetto.wire import INSTANT, INTERNED_CATEGORIES, INTERNED_NAMES


def annotation_events(
    annotation: Annotation, arrows: Mapping[int, Suffixes], tracks: AddedTracks, interned: Interned
) -> Iterator[Events]:
    """The events of one annotation, in pieces in the order of writing. Flows and empty tracks have no events.

    ``arrows`` are the fields of the arrows of added tracks, by their ``id``.
    """
    if isinstance(annotation, Flows) or not len(annotation.ts):
        return
    track = tracks.of_annotation(annotation)
    category = interned.number(INTERNED_CATEGORIES, f"augment.{annotation.analysis}")
    match annotation:
        case SliceTrack():
            suffixes_ = arrows.get(id(annotation), NO_SUFFIXES)
            args = slice_args(annotation, ArgsEncoder(interned))
            names = _name_numbers(annotation.names, interned)
            shown = args if annotation.colour is None else with_suffixes(args, colours(annotation.colour))
            outer = slices(annotation.ts, annotation.dur, track, category, names, with_suffixes(shown, suffixes_))
            yield from _with_inner(outer, annotation, track, category, args, interned)
        case CounterTrack():
            yield counters(annotation.ts, annotation.values.astype(np.float64), track)
        case InstantTrack():
            count = len(annotation.ts)
            kind, track_, category_ = (column(value, count) for value in (INSTANT, track, category))
            yield Events(kind, annotation.ts, track_, category_, _name_numbers(annotation.names, interned))


def _with_inner(
    outer: tuple[Events, Events], annotation: SliceTrack, track: int, category: int, args: Blobs, interned: Interned
) -> Iterator[Events]:
    """The slices of a track and those inside them, in the order of :func:`slices`: each begins after the one around
    it.
    """
    rows = annotation.inner_rows()
    if annotation.inner is None or not len(rows):
        yield from outer
        return
    names = _name_numbers(annotation.inner.take(rows), interned)
    inner = slices(annotation.ts[rows], annotation.dur[rows], track, category, names, args.take(rows))
    for outside, inside in zip(outer, inner, strict=True):
        yield outside
        yield inside


def _name_numbers(texts: Texts, interned: Interned) -> Int64s:
    """The number of each name; a missing text counts as the empty string."""
    none = len(texts.values)
    codes, which = numbered(np.where(texts.codes < 0, none, texts.codes))
    names = (texts.values[code] if code < none else "" for code in codes.tolist())
    return np.array([interned.number(INTERNED_NAMES, name) for name in names], np.int64)[which]
