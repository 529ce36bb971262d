//! The description of one file in a tar: the header, and the extended headers before it.

use std::io;

use tar::Header;

use super::TarError;

/// The kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Directory,
    Symlink,
    HardLink,
    Character,
    Block,
    Fifo,
}

/// One file of a tar.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// Its name as it is written, not checked.
    pub(crate) name: Vec<u8>,
    /// The target of a link.
    pub(crate) target: Vec<u8>,
    pub(crate) kind: Kind,
    /// Bytes of content that follow.
    pub(crate) size: u64,
    /// Twelve permission bits.
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Seconds and nanoseconds.
    pub(crate) mtime: (i64, u32),
    /// Major and minor number of a device.
    pub(crate) device: (u32, u32),
    pub(crate) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// The fields of extended headers for the entry behind them.
#[derive(Debug, Default)]
pub(crate) struct Corrections {
    pub(crate) name: Option<Vec<u8>>,
    pub(crate) target: Option<Vec<u8>>,
    pub(crate) size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
    mtime: Option<(i64, u32)>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Bytes of their names, each with the NUL that the kernel adds.
    xattr_names: usize,
}

/// Bytes of the names of all extended attributes of a file that the kernel lists (XATTR_LIST_MAX): a
/// file cannot have more.
const XATTR_NAMES_MAX: usize = 64 << 10;

/// How `SCHILY.xattr.user.x` says that `user.x` is an extended attribute.
const XATTR: &[u8] = b"SCHILY.xattr.";

impl Corrections {
    /// Adds a pax header: records of `<length> <key>=<value>
    /// `, where the value may have any
    /// bytes, newlines too.
    pub(crate) fn add_pax(&mut self, mut records: &[u8]) -> Result<(), TarError> {
        const RULE: TarError = TarError::Rule("an extended header has a malformed record");
        while !records.is_empty() {
            let space = records.iter().take(20).position(|&byte| byte == b' ');
            let space = space.ok_or(RULE)?;
            let len = decimal(&records[..space]).ok_or(RULE)?;
            let len = usize::try_from(len).map_err(|_| RULE)?;
            if len <= space + 1 || len > records.len() || records[len - 1] != b'\n' {
                return Err(RULE);
            }
            let (record, rest) = records.split_at(len);
            let record = &record[space + 1..len - 1];
            let equals = record.iter().position(|&byte| byte == b'=').ok_or(RULE)?;
            self.add_record(&record[..equals], &record[equals + 1..])?;
            records = rest;
        }
        Ok(())
    }

    fn add_record(&mut self, key: &[u8], value: &[u8]) -> Result<(), TarError> {
        const NUMBER: TarError = TarError::Rule("an extended header has a malformed number");
        match key {
            b"path" => self.name = Some(value.to_vec()),
            b"linkpath" => self.target = Some(value.to_vec()),
            b"size" => self.size = Some(decimal(value).ok_or(NUMBER)?),
            b"uid" => self.uid = Some(decimal(value).ok_or(NUMBER)?),
            b"gid" => self.gid = Some(decimal(value).ok_or(NUMBER)?),
            b"mtime" => self.mtime = Some(time(value).ok_or(NUMBER)?),
            _ if key.starts_with(b"GNU.sparse.") => return Err(TarError::Sparse),
            _ => {
                if let Some(name) = key.strip_prefix(XATTR) {
                    self.xattr_names += name.len() + 1;
                    if self.xattr_names > XATTR_NAMES_MAX {
                        return Err(TarError::Limit("extended attributes on one entry"));
                    }
                    self.xattrs.push((name.to_vec(), value.to_vec()));
                }
            }
        }
        Ok(())
    }

    /// Returns the entry of a header with these extended headers.
    pub(crate) fn apply(self, header: &Header, kind: Kind) -> Result<Entry, TarError> {
        let owner = |id: u64| {
            u32::try_from(id).map_err(|_| TarError::Rule("an owner has more than 32 bits"))
        };
        let name = self
            .name
            .unwrap_or_else(|| header.path_bytes().into_owned());
        let target = self.target.unwrap_or_else(|| {
            let target = header.link_name_bytes();
            target.map(|target| target.into_owned()).unwrap_or_default()
        });
        // Before there were directories in tars, a slash at the end made one.
        let kind = match kind {
            Kind::File if name.ends_with(b"/") => Kind::Directory,
            kind => kind,
        };
        let old = header.as_old();
        let seconds = i64::try_from(or_zero(&old.mtime, || header.mtime())?);
        let seconds = seconds.map_err(|_| TarError::Rule("a time has more than 63 bits"))?;
        let device = match kind {
            Kind::Character | Kind::Block => (
                header.device_major()?.unwrap_or(0),
                header.device_minor()?.unwrap_or(0),
            ),
            _ => (0, 0),
        };
        Ok(Entry {
            name,
            target,
            kind,
            size: self.size.map_or_else(|| header.entry_size(), Ok)?,
            mode: or_zero(&old.mode, || header.mode())? & 0o7777,
            uid: owner(
                self.uid
                    .map_or_else(|| or_zero(&old.uid, || header.uid()), Ok)?,
            )?,
            gid: owner(
                self.gid
                    .map_or_else(|| or_zero(&old.gid, || header.gid()), Ok)?,
            )?,
            mtime: self.mtime.unwrap_or((seconds, 0)),
            device,
            xattrs: self.xattrs,
        })
    }
}

/// Some programs leave a field empty where they mean zero.
fn or_zero<T: Default>(field: &[u8], parse: impl Fn() -> io::Result<T>) -> io::Result<T> {
    if field.iter().all(|byte| matches!(byte, 0 | b' ')) {
        return Ok(T::default());
    }
    parse()
}

fn decimal(digits: &[u8]) -> Option<u64> {
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    is_number.then(|| std::str::from_utf8(digits).ok()?.parse().ok())?
}

/// Decodes `[-]seconds[.fraction]`; of the fraction nine digits count.
fn time(text: &[u8]) -> Option<(i64, u32)> {
    let (negative, text) = match text.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let dot = text.iter().position(|&byte| byte == b'.');
    let (whole, fraction) = text.split_at(dot.unwrap_or(text.len()));
    let seconds = i64::try_from(decimal(whole)?).ok()?;
    let mut digits: Vec<u8> = fraction.iter().skip(1).take(9).copied().collect();
    digits.resize(9, b'0');
    let nanos = u32::try_from(decimal(&digits)?).ok()?;
    Some(match (negative, nanos) {
        (false, _) => (seconds, nanos),
        (true, 0) => (-seconds, 0),
        (true, _) => (-seconds - 1, 1_000_000_000 - nanos),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pax(records: &[u8]) -> Result<Corrections, TarError> {
        let mut corrections = Corrections::default();
        corrections.add_pax(records).map(|()| corrections)
    }

    #[test]
    fn values_may_have_any_bytes() {
        let found = pax(b"14 path=a\nb=c\n26 SCHILY.xattr.user.x=\0\n\n").unwrap();
        assert_eq!(found.name.as_deref(), Some(&b"a\nb=c"[..]));
        assert_eq!(found.xattrs, [(b"user.x".to_vec(), b"\0\n".to_vec())]);
    }

    #[test]
    fn records_that_lie_about_their_length_are_refused() {
        for bad in [
            &b"14 path=a\n"[..],
            b"8 path=a\n",
            b"0 \n",
            b"2 \n",
            b"x path=a\n",
            b" path=a\n",
            b"99999999999999999999 path=a\n",
            b"10 path=ab",
            b"7 path\n",
            b"10",
            b"9 size=x\n",
            b"24 GNU.sparse.major=1.0\n",
        ] {
            assert!(pax(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn times_have_nanoseconds_and_may_be_before_1970() {
        assert_eq!(time(b"12"), Some((12, 0)));
        assert_eq!(time(b"12.5"), Some((12, 500_000_000)));
        assert_eq!(time(b"12.0000000019"), Some((12, 1)));
        assert_eq!(time(b"-1.25"), Some((-2, 750_000_000)));
        assert_eq!(time(b"-3"), Some((-3, 0)));
        for bad in [
            &b""[..],
            b"-",
            b".5",
            b"1.x",
            b"1e9",
            b"99999999999999999999",
        ] {
            assert_eq!(time(bad), None, "{bad:?}");
        }
    }
}
