"""The paths of the page."""

from oxillama.server.interface import Interface
from oxillama.server.page.files import page

PAGE = Interface((("GET", "/", page), ("GET", "/page/{version}/{file:path}", page)))
