//! Parsing of untrusted bytes: formats on disk and on the wire.

/// A part of some bytes breaks a rule of their format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the {what} is invalid: {rule}")]
pub struct Broken {
    /// The part.
    pub what: &'static str,
    /// The rule.
    pub rule: &'static str,
}

/// Bytes that are read from front to back, each once, as little-endian numbers. Nothing is
/// allocated, whatever lengths they claim.
#[derive(Debug)]
pub struct Input<'a> {
    what: &'static str,
    rest: &'a [u8],
}

/// Every method that takes something fails if too few bytes are left.
impl<'a> Input<'a> {
    /// Returns the bytes of the part called `what` as input.
    #[must_use]
    pub const fn new(what: &'static str, bytes: &'a [u8]) -> Self {
        Self { what, rest: bytes }
    }

    /// Returns the error that says that `rule` was broken.
    #[must_use]
    pub const fn broken(&self, rule: &'static str) -> Broken {
        Broken {
            what: self.what,
            rule,
        }
    }

    /// Takes the next `len` bytes.
    ///
    /// # Errors
    /// If there are fewer.
    pub fn take(&mut self, len: usize) -> Result<&'a [u8], Broken> {
        let (head, rest) = self
            .rest
            .split_at_checked(len)
            .ok_or(self.broken("it ends early"))?;
        self.rest = rest;
        Ok(head)
    }

    /// Takes a table of `count` records of `N` bytes.
    ///
    /// # Errors
    /// If there are fewer.
    pub fn records<const N: usize>(&mut self, count: usize) -> Result<&'a [[u8; N]], Broken> {
        let len = count.checked_mul(N).ok_or(self.broken("it ends early"))?;
        let (records, _) = self.take(len)?.as_chunks::<N>();
        Ok(records)
    }

    /// Takes the next `N` bytes.
    ///
    /// # Errors
    /// If there are fewer.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Broken> {
        let (head, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or(self.broken("it ends early"))?;
        self.rest = rest;
        Ok(*head)
    }

    /// Takes a number of 8 bits.
    ///
    /// # Errors
    /// If nothing is left.
    pub fn u8(&mut self) -> Result<u8, Broken> {
        self.array().map(u8::from_le_bytes)
    }

    /// Takes a number of 16 bits.
    ///
    /// # Errors
    /// If less is left.
    pub fn u16(&mut self) -> Result<u16, Broken> {
        self.array().map(u16::from_le_bytes)
    }

    /// Takes a number of 32 bits.
    ///
    /// # Errors
    /// If less is left.
    pub fn u32(&mut self) -> Result<u32, Broken> {
        self.array().map(u32::from_le_bytes)
    }

    /// Takes a number of 64 bits.
    ///
    /// # Errors
    /// If less is left.
    pub fn u64(&mut self) -> Result<u64, Broken> {
        self.array().map(u64::from_le_bytes)
    }

    /// Takes a signed number of 64 bits.
    ///
    /// # Errors
    /// If less is left.
    pub fn i64(&mut self) -> Result<i64, Broken> {
        self.array().map(i64::from_le_bytes)
    }

    /// Takes a number of elements, which has 32 bits.
    ///
    /// # Errors
    /// If less is left.
    pub fn count(&mut self) -> Result<usize, Broken> {
        self.u32().map(|count| count as usize)
    }

    /// Takes all that is left.
    pub const fn rest(&mut self) -> &'a [u8] {
        let rest = self.rest;
        self.rest = &[];
        rest
    }

    /// Succeeds if everything was taken.
    ///
    /// # Errors
    /// If something is left.
    pub fn end(&self) -> Result<(), Broken> {
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(self.broken("something follows its end"))
    }

    /// Succeeds if all that is left is zero.
    ///
    /// # Errors
    /// If something else is left.
    pub fn zeros(&self) -> Result<(), Broken> {
        if is_zero(self.rest) {
            return Ok(());
        }
        Err(self.broken("a reserved field is in use"))
    }
}

/// Returns whether all bytes are zero.
#[must_use]
pub fn is_zero(bytes: &[u8]) -> bool {
    // In chunks: the compiler makes vector code of the inner loop, and data that is not zero
    // ends the outer one at once.
    bytes
        .chunks(256)
        .all(|chunk| chunk.iter().fold(0, |acc, byte| acc | byte) == 0)
}
