"""The report: run directories in, one self-contained HTML page (or pictures) out.

`runs` reads, `statistics` condenses, `figures` says what is drawn in which order, `charts`, `heatmap`
and `tables` turn that into HTML, `page` puts it together, `png` draws the same figures as pictures.
"""
