"""A minimal valid file or folder of each format, for tests and fuzzers."""

from __future__ import annotations

FILES = {
    "jsonl": '{"id": "u1", "hypotheses": ["a"]}\n',
    "json": '[\n {"id": "u1", "hypotheses": ["a"]},\n {"id": "u2", "hypotheses": ["b"]}\n]\n',
    "srilm": "-1.5 -2.5 2 a b\n-3 -4 0\n",
    "nbestlist1": "NBestList1.0\n(-12) a b\n",
    "mlm": '{"u1": {"hyp_1": {"score": -1, "text": "a"}}}\n',
    "espnet1": '{\n  "utts": {\n    "u1": {"output": [{"rec_text": "a", "score": -1}]}\n  }\n}\n',
    "alternatives": '{"results": [\n{"alternatives": [{"transcript": "a", "confidence": 0.9}]}]}\n',
    "whisper": '{"text": " a", "segments": [{"id": 0, "seek": 0, "start": 0.0, "end": 2.5, "text": " a", '
    '"tokens": [50364, 257], "avg_logprob": -0.5, "no_speech_prob": 0.01}], "language": "en"}\n',
    "request": '{"lists": [{"id": "u1",\n"hypotheses": [{"text": "a"}, {}], "streams": [{"name": "am", '
    '"base": "LOG_BASE_10", "sign": "SCORE_SIGN_COST", "values": [3, 4.5]}]}], "weightsName": "x"}\n',
    "manifest": '{"audio_filepath": "calls/u1.wav", "duration": 2.5, "text": "a", "pred_text": "a", '
    '"beams": [["a", -3.1], ["b", -3.4]]}\n',
    "nemo": "yeah well\t-3.5\n\t-4\n",
    "cued": "u1 -1 -2 1 <s> a </s>\n",
    "htk": "# by hand\nVERSION=1.0\nN=2 L=1\nI=0 W=!NULL\nI=1 W=a\nJ=0 S=0 E=1 a=-3\n",
    "kaldi-lattice": "u1\n0 1 yeah 3.5,14,2_4\n1 0.5,1,\n\n",
    "srinterp": "am=-1.5 lm=-2 a b\nam=-3 lm=-4\n",
    "nbestlist2": "NBestList2.0\n(-12) a ( st: 0.00 et: 0.48 g: -1 a: -4 )\n",
    "trn": "a b (u1)\n",
    "table": 'id,text,score\nu1,"a, b",-1.5\nu1,b,-2\n',
    "icefall": "u1-0:\tref=['A', 'B']\nu1-0:\thyp=['A', \"I'LL\"]\n",
    "fairseq": "S-3\tx y\nT-3\ta b\nH-3\t-0.5\ta@@ b\nD-3\t-0.5\tab\nP-3\t-0.25 -0.75\n",
    "wenet": "wav u1\ncandidate -1.5 a b\ncandidate -3 b\n",
    "aps": "2\nu1\n-1.500\t2\ta b\n-3.000\t1\tb\n",
    "moses": "0 ||| a b ||| LM0= -1.5 TM0= -1 -2 ||| -3.5\n0 ||| b ||| LM0= -2 TM0= -1 -2 ||| -4\n",
    "kaldi-text": "u1 a b\nu2\n",
    "ctm": "u1 1 0.5 0.25 a\n",
    "seglst": '[{"session_id": "S05", "speaker": "P03", "start_time": "11.370", "end_time": "12.500", '
    '"words": "a b"}]\n',
    "stm": ";; a comment\nu1 1 ann 0.5 0.75 <o,f0> a\nu1 1 ann 1 2\n",
}
"""A minimal file of each format that can be detected from a file."""
CHOICES_WITH_OPTIONS = {"nemo": "nemo:beam=2", "cued": "cued:base=10", "srinterp": "srinterp:base=10"}
"""Choices, with options, of the formats whose files do not declare everything themselves."""
FOLDERS = {
    "kaldi": {"words_text": "u1-1 a\n", "acwt": "u1-1 3\n"},
    "srilm": {"u1": FILES["srilm"], "u2": "no list"},
    "nbestlist1": {"u1": FILES["nbestlist1"]},
    "srinterp": {"u1": FILES["srinterp"]},
    "espnet2": {"1best_recog/text": "u1 a\n", "1best_recog/score": "u1 -1\n"},
    "htk": {"README": "no lattice", "u1.slf": FILES["htk"]},
    "nbestlist2": {"u1": FILES["nbestlist2"]},
    "alternatives": {"u1.json": FILES["alternatives"], "u2.json": "{}"},
    "whisper": {"talk.json": FILES["whisper"]},
}
"""A minimal folder, as text by file name, of each format that can be detected from a folder."""
