"""Storage of studies: databases, and the translation to and from Vizier's protocol buffers.

This is the only room that knows SQL and Vizier's tables. The meaning of a trial lies in
`paxtune.study`. Access over a network lies in `paxtune.service`.
"""
