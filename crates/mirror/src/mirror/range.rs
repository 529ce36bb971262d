//! Which bytes of a blob are asked for.

/// What a `Range` header means for a blob of a certain length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// All: there is no range, or one in units that are not known, which no server heeds.
    All,
    /// From a byte to one before another. There is at least one.
    Part {
        start: u64,
        end: u64,
        /// Whether the client has named the end, and so reads here and there, or wants the rest.
        is_bounded: bool,
    },
    /// Nothing that is there, or nothing that could be.
    Nothing,
    /// Several ranges at once. Clients that ask for these ask one by one when they are refused.
    Several,
}

impl Wanted {
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
        let part = |start, end, is_bounded| Wanted::Part {
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
            ("bytes=100-", Wanted::Nothing),
            ("bytes=-0", Wanted::Nothing),
            ("bytes=99999999999999999999999-", Wanted::Nothing),
            ("bytes=0-1,5-6", Wanted::Several),
            ("bytes=9-0", Wanted::Nothing),
            ("bytes=a-b", Wanted::Nothing),
            ("bytes=--1", Wanted::Nothing),
            ("bytes=-", Wanted::Nothing),
            ("bytes=7", Wanted::Nothing),
            ("bytes=", Wanted::Nothing),
            ("bytes=0x1-2", Wanted::Nothing),
            ("BYTES=0-9", part(0, 10, true)),
            ("items=0-1", Wanted::All),
            ("items", Wanted::All),
        ] {
            assert_eq!(Wanted::parse(Some(header), 100), wanted, "{header}");
        }
        assert_eq!(Wanted::parse(None, 100), Wanted::All);
        assert_eq!(Wanted::parse(Some("bytes=0-"), 0), Wanted::Nothing);
    }
}
