from dataclasses import replace

from reverie.store.manifest import Manifest, Segment, decoded
from reverie.store.sittings import Part, Sitting, begun, held_until, parts_of, same_until, since, until
from store_rows import COLUMNS

A, B, C = Sitting("a", 0), Sitting("b", 20), Sitting("c", 30)


def segment(name, rows, *sittings, **more):
    return Segment(name=name, id="x", streams=1, columns=COLUMNS, chunk=8, rows=rows, sittings=sittings, **more)


def test_rows_are_the_same_until_somebody_else_writes():
    assert same_until((A, B), (A, B, C), 40) == 30
    assert same_until((A, B), (A, B, C), 30) == 30
    assert same_until((A, B), (A, Sitting("other", 20)), 40) == 20
    assert same_until((), (), 40) == 40  # earlier versions do not say
    assert same_until((), (B,), 40) == 20
    assert until((A, B, C), 30) == (A, B)
    assert begun((A, B, C), 30)[:-1] == (A, B)
    assert begun((A, B, C), 30)[-1].start == 30


def test_rows_are_held_by_a_segment_that_begins_as_they_do():
    segments = [segment("0", 25, A, B), segment("1", 50, Sitting("other", 0)), segment("2", 9)]
    assert held_until(segments, (A, B, C), 40) == 25
    assert held_until(segments, (A, C), 40) == 20
    assert held_until(segments, (), 40) == 0  # nobody knows


def test_rows_are_found_among_those_set_aside():
    home = segment("0", 40, A, C)
    aside = segment("aside/0", 19, A, B, offset=16, first=4)  # rows 20 to 34
    assert parts_of([home, aside], (A, B), 5, 34) == [Part(home, 5, 20), Part(aside, 20, 34)]
    assert parts_of([home, aside], (A, C), 5, 34) == [Part(home, 5, 34)]
    assert parts_of([home], (A, B), 5, 34) == [Part(home, 5, 20)]  # the others are lost
    assert parts_of([aside], (A, B), 5, 34) == [Part(aside, 20, 34)]
    assert parts_of([], (A, B), 5, 34) == []


def test_rows_set_aside_are_found_by_the_sittings_in_which_they_were_written():
    assert since((A, B, C), 20) == since((A, B, C), 29) == (B, C)
    assert since((B, C), 5) == (B, C)  # an earlier version has written row 5
    home = segment("0", 40, A, C)
    aside = segment("aside/0", 19, B, offset=16, first=4)  # rows 20 to 34, without the sitting before
    assert parts_of([home, aside], (A, B), 5, 34) == [Part(home, 5, 20), Part(aside, 20, 34)]
    assert parts_of([aside], (A, B), 20, 34) == [Part(aside, 20, 34)]
    assert parts_of([aside], (A, Sitting("other", 20)), 20, 34) == []
    assert parts_of([aside], (A,), 20, 34) == []


def test_the_manifest_keeps_them():
    manifest = Manifest((segment("0", 40, A, B, run="/runs/first"),), (replace(segment("aside/0", 9, A), offset=16),))
    assert decoded(manifest.encoded()) == manifest
