"""Named tuples without the cost of importing typing, or of collections.namedtuple for each class.

mypy sees `typing.NamedTuple` (see the imports of model.py); the interpreter gets the class below, which behaves
like it. Forty classes: 2 ms of CPU by collections.namedtuple, which compiles code for each, 0.4 ms here; `import
typing` costs 8.5 ms.
"""
from operator import itemgetter


class _Named(type):
    def __new__(mcs, name, bases, body):  # type: ignore[no-untyped-def]
        fields = tuple(body.get("__annotations__", ()))
        if not fields:
            return super().__new__(mcs, name, bases, body)
        defaults = {field: body[field] for field in fields if field in body}
        body.update((field, property(itemgetter(at))) for at, field in enumerate(fields))
        return type(name, (_Values,), {**body, "__slots__": (), "_fields": fields, "_field_defaults": defaults})


class _Values(tuple):  # type: ignore[type-arg]
    __slots__ = ()
    _fields: tuple = ()  # type: ignore[type-arg]
    _field_defaults: dict = {}  # type: ignore[type-arg]

    def __new__(cls, *values, **named):  # type: ignore[no-untyped-def]
        if named or len(values) != len(cls._fields):
            values = cls._complete(values, named)  # type: ignore[no-untyped-call]
        return tuple.__new__(cls, values)

    @classmethod
    def _complete(cls, values, named):  # type: ignore[no-untyped-def]
        given = {**cls._field_defaults, **dict(zip(cls._fields, values)), **named}  # noqa: B905  # told apart below
        twice = named.keys() & cls._fields[:len(values)]
        if twice or len(values) > len(cls._fields) or given.keys() != set(cls._fields):
            raise TypeError(f"{cls.__name__}{values} {named}: its fields are {', '.join(cls._fields)}")
        return [given[field] for field in cls._fields]

    @classmethod
    def _make(cls, values):  # type: ignore[no-untyped-def]
        return tuple.__new__(cls, values)

    def _replace(self, **named):  # type: ignore[no-untyped-def]
        return self.__class__(**{**self._asdict(), **named})  # type: ignore[no-untyped-call]

    def _asdict(self):  # type: ignore[no-untyped-def]
        return dict(zip(self._fields, self))  # noqa: B905  # of one length

    def __repr__(self):  # type: ignore[no-untyped-def]
        fields = ", ".join(f"{field}={value!r}" for field, value in zip(self._fields, self))  # noqa: B905
        return f"{self.__class__.__name__}({fields})"

    def __getnewargs__(self):  # type: ignore[no-untyped-def]
        return tuple(self)      # copy and pickle


class NamedTuple(metaclass=_Named):
    """Base of the value classes: annotated fields in order, defaults allowed at the end, methods kept."""
