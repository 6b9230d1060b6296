"""How results are shown: terminal tables and figures. Imports result types only."""
