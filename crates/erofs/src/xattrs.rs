//! Extended attributes behind an inode.

use crate::error::ErofsError;

/// The header in front of the attributes of an inode.
const HEADER_BYTES: usize = 12;

/// The names that the format has numbers for, longest first. A name that is one of them and no more is kept
/// empty.
const PREFIXES: [(&[u8], u8); 5] = [
    (b"system.posix_acl_default", 3),
    (b"system.posix_acl_access", 2),
    (b"security.", 6),
    (b"trusted.", 4),
    (b"user.", 1),
];

/// Encodes attributes: nothing if there are none. Names without a handler in Linux are left out, since
/// they cannot be set or read.
pub(crate) fn encode<'a>(
    xattrs: impl Iterator<Item = (&'a [u8], &'a [u8])>,
) -> Result<Vec<u8>, ErofsError> {
    let mut body = vec![0; HEADER_BYTES];
    for (name, value) in xattrs {
        let Some((rest, index)) = split(name) else {
            continue;
        };
        let too_long = || ErofsError::Xattr {
            name: String::from_utf8_lossy(name).into_owned(),
        };
        body.push(u8::try_from(rest.len()).map_err(|_| too_long())?);
        body.push(index);
        let len = u16::try_from(value.len()).map_err(|_| too_long())?;
        body.extend(len.to_le_bytes());
        body.extend_from_slice(rest);
        body.extend_from_slice(value);
        body.resize(body.len().next_multiple_of(4), 0);
    }
    if body.len() == HEADER_BYTES {
        body.clear();
    }
    match units(&body) {
        Some(_) => Ok(body),
        None => Err(ErofsError::Xattr {
            name: "all together".to_owned(),
        }),
    }
}

/// Returns the field of an inode for the length of its attributes; `None` if they are too long.
pub(crate) fn units(body: &[u8]) -> Option<u16> {
    match body.len() {
        0 => Some(0),
        len => u16::try_from((len - HEADER_BYTES) / 4 + 1).ok(),
    }
}

fn split(name: &[u8]) -> Option<(&[u8], u8)> {
    let found = |(prefix, index): &(&[u8], u8)| Some((name.strip_prefix(*prefix)?, *index));
    PREFIXES.iter().find_map(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_have_the_bytes_of_the_format() {
        assert_eq!(encode(std::iter::empty()).unwrap(), []);
        let xattrs: [(&[u8], &[u8]); 3] = [
            (b"user.ab", b"xyz"),
            (b"system.posix_acl_access", b"1234"),
            (b"com.apple.x", b"left out"),
        ];
        let body = encode(xattrs.into_iter()).unwrap();
        let mut expected = vec![0; 12];
        expected.extend(b"\x02\x01\x03\0abxyz\0\0\0");
        expected.extend(b"\0\x02\x04\x001234");
        assert_eq!(body, expected);
        assert_eq!(units(&body), Some(6));
        assert!(encode([(&b"user.a"[..], &[0; 65_536][..])].into_iter()).is_err());
    }
}
