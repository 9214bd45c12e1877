"""How far each fix's predictions were from measurements; by tests/benchmarks/accuracy.py.

In: nothing. Out: `RECORDS`, data.
"""

from __future__ import annotations

from ..model.fix import Record

RECORDS: dict[str, Record] = {
    "FX101": Record(predictions=19, error=0.2066, close=6, bounds=1, held=1),
    "FX103": Record(predictions=4, error=0.0376, close=4, bounds=0, held=0),
    "FX105": Record(predictions=3, error=0.2857, close=0, bounds=0, held=0),
    "FX106": Record(predictions=0, error=None, close=0, bounds=1, held=1),
    "FX107": Record(predictions=0, error=None, close=0, bounds=2, held=2),
    "FX110": Record(predictions=0, error=None, close=0, bounds=1, held=1),
    "FX201": Record(predictions=4, error=0.0276, close=4, bounds=0, held=0),
    "FX204": Record(predictions=5, error=0.0569, close=4, bounds=0, held=0),
    "FX205": Record(predictions=0, error=None, close=0, bounds=4, held=4),
    "FX214": Record(predictions=3, error=0.0331, close=2, bounds=0, held=0),
    "FX301": Record(predictions=21, error=0.0484, close=18, bounds=0, held=0),
    "FX303": Record(predictions=17, error=0.0787, close=11, bounds=15, held=12),
    "FX306": Record(predictions=2, error=0.0703, close=2, bounds=0, held=0),
    "FX310": Record(predictions=12, error=0.0486, close=10, bounds=0, held=0),
    "FX311": Record(predictions=14, error=0.0695, close=10, bounds=0, held=0),
    "FX324": Record(predictions=1, error=0.4273, close=0, bounds=0, held=0),
    "FX325": Record(predictions=1, error=0.0551, close=1, bounds=0, held=0),
    "FX326": Record(predictions=3, error=0.1133, close=1, bounds=3, held=2),
    "FX327": Record(predictions=0, error=None, close=0, bounds=1, held=1),
    "FX328": Record(predictions=1, error=0.0088, close=1, bounds=0, held=0),
    "FX329": Record(predictions=0, error=None, close=0, bounds=1, held=1),
    "FX331": Record(predictions=0, error=None, close=0, bounds=1, held=1),
    "FX335": Record(predictions=0, error=None, close=0, bounds=2, held=2),
    "FX336": Record(predictions=0, error=None, close=0, bounds=2, held=1),
    "FX339": Record(predictions=0, error=None, close=0, bounds=5, held=4),
    "FX341": Record(predictions=3, error=0.0522, close=3, bounds=0, held=0),
    "FX342": Record(predictions=0, error=None, close=0, bounds=1, held=0),
    "FX343": Record(predictions=1, error=0.2047, close=0, bounds=0, held=0),
    "FX344": Record(predictions=0, error=None, close=0, bounds=1, held=1),
    "FX401": Record(predictions=1, error=0.1637, close=0, bounds=0, held=0),
    "FX403": Record(predictions=4, error=0.0547, close=3, bounds=0, held=0),
    "FX408": Record(predictions=1, error=2.4854, close=0, bounds=0, held=0),
    "FX409": Record(predictions=1, error=0.2599, close=0, bounds=0, held=0),
    "FX412": Record(predictions=16, error=0.0317, close=13, bounds=6, held=5),
    "FX413": Record(predictions=1, error=0.017, close=1, bounds=0, held=0),
    "FX414": Record(predictions=25, error=0.0275, close=20, bounds=3, held=3),
    "FX501": Record(predictions=9, error=0.0278, close=9, bounds=0, held=0),
    "FX504": Record(predictions=1, error=0.1138, close=0, bounds=0, held=0),
    "FX505": Record(predictions=1, error=0.0715, close=1, bounds=0, held=0),
    "FX508": Record(predictions=0, error=None, close=0, bounds=1, held=1),
    "FX512": Record(predictions=2, error=0.9313, close=1, bounds=0, held=0),
    "FX514": Record(predictions=0, error=None, close=0, bounds=2, held=1),
    "FX517": Record(predictions=0, error=None, close=0, bounds=1, held=1),
    "FX523": Record(predictions=2, error=0.0378, close=2, bounds=0, held=0),
    "FX524": Record(predictions=2, error=0.1151, close=1, bounds=0, held=0),
    "FX525": Record(predictions=0, error=None, close=0, bounds=1, held=1),
    "FX609": Record(predictions=1, error=0.2712, close=0, bounds=0, held=0),
}
