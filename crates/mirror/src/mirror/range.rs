//! Parses the byte range of a request.

/// A `Range` header, resolved for the size of a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestedRange {
    /// The whole blob: there is no range, or one in unknown units, which servers ignore.
    All,
    /// The bytes from `start` to before `end`: at least one.
    Part {
        start: u64,
        end: u64,
        /// Whether the client gave the end of the range, which lazy clients do; or requests the rest.
        is_bounded: bool,
    },
    /// An invalid range, or one outside of the blob.
    Nothing,
    /// Several ranges at once. Clients that ask for these ask one by one when they are refused.
    Several,
}

impl RequestedRange {
    /// Reads a header.
    pub(super) fn parse(header: Option<&str>, size: u64) -> Self {
        let in_units = header.and_then(|header| header.trim().split_once('='));
        let in_bytes = in_units.filter(|(unit, _)| unit.trim().eq_ignore_ascii_case("bytes"));
        let Some((_, ranges)) = in_bytes else {
            return Self::All;
        };
        if ranges.contains(',') {
            return Self::Several;
        }
        let Some((first, last)) = ranges.split_once('-') else {
            return Self::Nothing;
        };
        let number = |text: &str| {
            let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            // A number too large to count is beyond every blob.
            is_number.then(|| text.parse().unwrap_or(u64::MAX))
        };
        let (start, end, is_bounded) = match (number(first.trim()), number(last.trim())) {
            (None, Some(suffix)) if first.trim().is_empty() => (
                size.saturating_sub(suffix),
                if suffix == 0 { 0 } else { size },
                true,
            ),
            (Some(start), Some(last)) if start <= last => {
                (start, size.min(last.saturating_add(1)), true)
            }
            (Some(start), None) if last.trim().is_empty() => (start, size, false),
            _ => return Self::Nothing,
        };
        match start < end {
            true => Self::Part {
                start,
                end,
                is_bounded,
            },
            false => Self::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_as_the_standard_has_them() {
        let part = |start, end, is_bounded| RequestedRange::Part {
            start,
            end,
            is_bounded,
        };
        for (header, wanted) in [
            ("bytes=0-9", part(0, 10, true)),
            ("bytes=5-", part(5, 100, false)),
            ("bytes=90-500", part(90, 100, true)),
            ("bytes=-10", part(90, 100, true)),
            ("bytes=-500", part(0, 100, true)),
            ("bytes=100-", RequestedRange::Nothing),
            ("bytes=-0", RequestedRange::Nothing),
            ("bytes=99999999999999999999999-", RequestedRange::Nothing),
            ("bytes=0-1,5-6", RequestedRange::Several),
            ("bytes=9-0", RequestedRange::Nothing),
            ("bytes=a-b", RequestedRange::Nothing),
            ("bytes=--1", RequestedRange::Nothing),
            ("bytes=-", RequestedRange::Nothing),
            ("bytes=7", RequestedRange::Nothing),
            ("bytes=", RequestedRange::Nothing),
            ("bytes=0x1-2", RequestedRange::Nothing),
            ("BYTES=0-9", part(0, 10, true)),
            ("items=0-1", RequestedRange::All),
            ("items", RequestedRange::All),
        ] {
            assert_eq!(RequestedRange::parse(Some(header), 100), wanted, "{header}");
        }
        assert_eq!(RequestedRange::parse(None, 100), RequestedRange::All);
        assert_eq!(
            RequestedRange::parse(Some("bytes=0-"), 0),
            RequestedRange::Nothing
        );
    }
}
