"""Ordinary words that are one token each, with the space before them, in most vocabularies: what text is made of.

Half of them have three letters, so that with their space they fill four bytes: the simulated endpoint's token.
"""

from __future__ import annotations

_TEXT = """
the def and not for are can sys all use set but key one may has any new was msg end its cls you obj pos two del get
out arg add see str top url cmd run res int how tag exc now way too log ans try val buf opt old ext day dir raw got
via pid typ our etc doc per err sep row src off own map tab req bit dat yet mod num tar exp dst env had ret idx col
var why fun seq sig put max bad dot due fmt box fit iff foo ctx fix zip nor min bug pat big let enc bar did low ast
hit sub pip lib sec few hex far job pen web sum who tok cut pad rep uid act tmp say len van adj btn ask win pop odd
uri net yes mon tri mix ann mac ref abc acc lot cal fee dis txt ver sym loc ids gen sel mid tid std rid ips rem six
inf abs dec cur nil cat den pre dim age lie dup esc aka app cfg bot alt sql xml tau dig bos pay rel pet red eat dfs
sun ang dev gap lex bin bye ran arc div uni won phi tip fed ins seg kid cmp non org inc ops car dos neg cap she law
him ent img pit bio cos sit aid tem rad lev nim www css air ner ago csv his hog ten man san api awk pow eye rgb nan
rev fly fur bid cpu urn met dry fam pro cup self return raise with that from except name value this import file object
elif will line class string module used list data which method function text must result other when path have should
type code number only while argument context default given first args instance called then bytes message command using
values filename current time version source option same call lines into methods objects else header encoding also than
assert mode names input size case more widget returns event does item after node socket base start parser frame error
before there found files index options empty tuple types each been where server match already root they test defined
loop true sequence stream last token read output format errors support user need some strings passed address state
parent either process instead entry protocol section host order action stack next level block without spec raised part
here integer handle single response because just until pattern check dict flags global child optional length master
always named info thread between keyword classes request handler prefix items offset cannot example these logger like
window created create package count port them such being since headers open variable both make buffer func most
position would target want through standard write whether added about their group possible flag async copy keys
contains width find point search member done system binary change callback second events cookie logging email form
await special what over encoded another field original valid local changes help multiple closed contain zero fields
matches uses even long back parts left could least program results lock provided means right pass modules extra
running screen existing tree were within contents
"""

WORDS: tuple[str, ...] = tuple(_TEXT.split())
