//! Python's `marshal`: a tree of objects, one after the other. Nothing is built of it but what is asked for; the depth of the
//! tree costs a list of counts, not a recursion.

/// How deep objects may lie in each other.
const DEPTH_MAX: usize = 256;
/// Objects that others refer to.
const REFERENCES_MAX: usize = 1 << 16;
/// Elements of a tuple that is read.
const TUPLE_MAX: usize = 1 << 14;
/// The bit of a type that says that others may refer to the object.
const IS_REFERRED_TO: u8 = 0x80;

/// What an object is, as far as it is of interest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value<'a> {
    /// A number of 32 bits.
    Number(i32),
    /// Bytes or text.
    Bytes(&'a [u8]),
    Other,
}

/// What an object goes on with.
#[derive(Clone, Copy, Debug)]
enum Inside {
    Nothing,
    /// So many objects.
    Objects(usize),
    /// Pairs of objects, up to a type that stands for none.
    Pairs,
    /// The rest of a code object, whose instructions begin it.
    Code,
}

/// What a type begins.
#[derive(Clone, Copy, Debug)]
enum Begun<'a> {
    Object(Value<'a>, Inside),
    /// The end of pairs.
    Nothing,
}

/// What is left of an object that was begun.
#[derive(Clone, Copy, Debug)]
enum Left {
    Objects(usize),
    Pairs,
    /// A number of 32 bits.
    Number,
}

/// Reads objects from front to back.
#[derive(Debug)]
pub(super) struct Marshal<'a> {
    rest: &'a [u8],
    /// The objects that others refer to, by number.
    referred_to: Vec<Value<'a>>,
    /// The numbers of 32 bits that a code object begins with.
    numbers: usize,
}

/// Each returns `None` if the bytes end, or break a rule.
impl<'a> Marshal<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self {
            rest: bytes,
            referred_to: Vec::new(),
            numbers: 0,
        }
    }

    /// Begins a code object, which has so many numbers before its instructions: these are the next object.
    pub(super) fn begin_code(&mut self, numbers: usize) -> Option<()> {
        self.numbers = numbers;
        let kind = self.kind()?;
        self.take(numbers * 4)?;
        (kind.0 == b'c').then_some(())
    }

    /// Takes a tuple, and returns its elements.
    pub(super) fn tuple(&mut self) -> Option<Vec<Value<'a>>> {
        let (kind, _) = self.kind()?;
        let count = match kind {
            b')' => usize::from(self.u8()?),
            b'(' => self.count()?,
            // Only the empty one is the same for several.
            b'r' if self.reference()? == Value::Other => 0,
            _ => return None,
        };
        if count > TUPLE_MAX {
            return None;
        }
        let mut elements = Vec::new();
        for _ in 0..count {
            elements.push(self.object()?);
        }
        Some(elements)
    }

    /// Takes an object with all that it consists of.
    pub(super) fn object(&mut self) -> Option<Value<'a>> {
        let Begun::Object(value, inside) = self.begin()? else {
            return None;
        };
        let mut left = Vec::new();
        self.enter(inside, &mut left)?;
        while let Some(next) = left.pop() {
            match next {
                Left::Objects(0) => continue,
                Left::Objects(count) => left.push(Left::Objects(count - 1)),
                Left::Pairs => {}
                Left::Number => {
                    self.take(4)?;
                    continue;
                }
            }
            match (self.begin()?, next) {
                (Begun::Object(_, inside), Left::Pairs) => {
                    // The value, after whatever is in the key, and then the next pair.
                    left.extend([Left::Pairs, Left::Objects(1)]);
                    self.enter(inside, &mut left)?;
                }
                (Begun::Object(_, inside), _) => self.enter(inside, &mut left)?,
                (Begun::Nothing, Left::Pairs) => {}
                (Begun::Nothing, _) => return None,
            }
            if left.len() > DEPTH_MAX {
                return None;
            }
        }
        Some(value)
    }

    fn enter(&mut self, inside: Inside, left: &mut Vec<Left>) -> Option<()> {
        match inside {
            Inside::Nothing => {}
            Inside::Objects(count) => left.push(Left::Objects(count)),
            Inside::Pairs => left.push(Left::Pairs),
            Inside::Code => {
                self.take(self.numbers * 4)?;
                // Instructions, constants, names, five more; the first line; what is said of lines and exceptions.
                // Before 3.11 there is nothing about exceptions.
                let after = if self.numbers == 6 { 1 } else { 2 };
                left.extend([Left::Objects(after), Left::Number, Left::Objects(8)]);
            }
        }
        Some(())
    }

    /// Takes the beginning of an object.
    fn begin(&mut self) -> Option<Begun<'a>> {
        let (kind, at) = self.kind()?;
        let mut inside = Inside::Nothing;
        let value = match kind {
            b'0' => return Some(Begun::Nothing),
            b'N' | b'F' | b'T' | b'S' | b'.' => Value::Other,
            b'i' => Value::Number(self.i32()?),
            b'I' | b'g' => self.other(8)?,
            b'y' => self.other(16)?,
            b'f' => {
                let len = usize::from(self.u8()?);
                self.other(len)?
            }
            b'x' => {
                let len = usize::from(self.u8()?);
                self.take(len)?;
                let len = usize::from(self.u8()?);
                self.other(len)?
            }
            b'l' => {
                let digits = self.i32()?.unsigned_abs();
                self.other(usize::try_from(digits).ok()?.checked_mul(2)?)?
            }
            b's' | b't' | b'u' | b'a' | b'A' => {
                let len = self.count()?;
                Value::Bytes(self.take(len)?)
            }
            b'z' | b'Z' => {
                let len = usize::from(self.u8()?);
                Value::Bytes(self.take(len)?)
            }
            b')' => {
                inside = Inside::Objects(usize::from(self.u8()?));
                Value::Other
            }
            b'(' | b'[' | b'<' | b'>' => {
                inside = Inside::Objects(self.count()?);
                Value::Other
            }
            b'{' => {
                inside = Inside::Pairs;
                Value::Other
            }
            b':' => {
                inside = Inside::Objects(3);
                Value::Other
            }
            b'c' => {
                inside = Inside::Code;
                Value::Other
            }
            b'r' => self.reference()?,
            _ => return None,
        };
        if let Some(known) = at.and_then(|at| self.referred_to.get_mut(at)) {
            *known = value;
        }
        Some(Begun::Object(value, inside))
    }

    /// Takes the type of an object, and gives it a number if others may refer to it.
    fn kind(&mut self) -> Option<(u8, Option<usize>)> {
        let kind = self.u8()?;
        if kind & IS_REFERRED_TO == 0 {
            return Some((kind, None));
        }
        let at = self.referred_to.len();
        if at >= REFERENCES_MAX {
            return None;
        }
        self.referred_to.push(Value::Other);
        Some((kind & !IS_REFERRED_TO, Some(at)))
    }

    /// Takes a reference to an object before.
    fn reference(&mut self) -> Option<Value<'a>> {
        let at = self.count()?;
        self.referred_to.get(at).copied()
    }

    fn other(&mut self, len: usize) -> Option<Value<'a>> {
        self.take(len)?;
        Some(Value::Other)
    }

    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(head)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    fn i32(&mut self) -> Option<i32> {
        let bytes = self.take(4)?.first_chunk()?;
        Some(i32::from_le_bytes(*bytes))
    }

    /// Takes a count, which is not negative.
    fn count(&mut self) -> Option<usize> {
        usize::try_from(self.i32()?).ok()
    }
}
