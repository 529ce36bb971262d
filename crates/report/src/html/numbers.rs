//! Numbers, formatted for people.

/// Returns an amount of bytes with a unit that suits it: `41.2 MiB`. Cut, not rounded, as in all that
/// the programs print.
pub(super) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let Some(power) = bytes
        .checked_ilog2()
        .map(|log| log / 10)
        .filter(|power| *power > 0)
    else {
        return format!("{bytes} B");
    };
    let tenths = (u128::from(bytes) * 10) >> (10 * power);
    let unit = UNITS.get(power as usize - 1).unwrap_or(&"EiB");
    format!("{}.{} {unit}", tenths / 10, tenths % 10)
}

/// Returns a number with its thousands apart: `12,480`.
pub(super) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns a number of things: `1 file`, `12,480 files`.
pub(super) fn things(number: u64, thing: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {thing}{plural}", count(number))
}

/// Returns a time: `3.4 ms`, `123 ms`, `4.21 s`, `2 min 5 s`.
pub(super) fn time(ms: f64) -> String {
    if ms <= 0.0 {
        "0 ms".to_owned()
    } else if ms < 9.95 {
        format!("{ms:.1} ms")
    } else if ms < 999.5 {
        format!("{ms:.0} ms")
    } else if ms < 59_995.0 {
        format!("{:.2} s", ms / 1e3)
    } else {
        let seconds = (ms / 1e3).round();
        format!(
            "{:.0} min {:.0} s",
            (seconds / 60.0).floor(),
            seconds % 60.0
        )
    }
}

/// Returns a part of a whole: `12.3 %`; a dash if there is no whole. Never more than all of it: the
/// last block of a file counts as a whole block, and can have more bytes than the file.
pub(super) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "–".to_owned();
    }
    let thousandths = u128::from(part.min(whole)) * 1000 / u128::from(whole);
    if part > 0 && thousandths == 0 {
        return "< 0.1 %".to_owned();
    }
    format!("{}.{} %", thousandths / 10, thousandths % 10)
}

/// Returns the ratio of both: `12.3×`; `None` if the other is zero.
pub(super) fn times(number: f64, of: f64) -> Option<String> {
    let ratio = number / of;
    let digits = if ratio < 9.95 { 2 } else { 1 };
    (of > 0.0 && ratio.is_finite()).then(|| format!("{ratio:.digits$}×"))
}

/// Returns a moment in UTC: `2026-11-21 11:28 UTC`.
pub(super) fn moment(secs_since_1970: i64) -> String {
    const DAY: i64 = 24 * 3600;
    // Whoever says more does not know: some ten thousand years.
    const DAYS_SHOWN: i64 = 3_650_000;
    let (day, second) = (
        secs_since_1970.div_euclid(DAY),
        secs_since_1970.rem_euclid(DAY),
    );
    let (year, month, day) = date(day.clamp(-DAYS_SHOWN, DAYS_SHOWN));
    let (hour, minute) = (second / 3600, second % 3600 / 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

/// Returns year, month and day of a day since 1970.
///
/// Years are counted from March, so that the leap day is the last of a year: then the days before a
/// month follow a straight line of 153 days in five months.
const fn date(days_since_1970: i64) -> (i64, i64, i64) {
    const DAYS_IN_ERA: i64 = 146_097; // 400 years, after which the calendar repeats
    const TO_MARCH_OF_YEAR_0: i64 = 719_468;
    let days = days_since_1970 + TO_MARCH_OF_YEAR_0;
    let era = days.div_euclid(DAYS_IN_ERA);
    let of_era = days.rem_euclid(DAYS_IN_ERA);
    // Leap days come after 4 years (1460 days), not after 100 (36524), but after 400 (146096).
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 {
        from_march + 3
    } else {
        from_march - 9
    };
    let year = era * 400 + year_of_era + if month <= 2 { 1 } else { 0 };
    (year, month, day)
}

/// Returns a text of at most `max` characters: of a longer one, both ends.
pub(super) fn clipped(text: &str, max: usize) -> String {
    let chars: Vec<char> = text.chars().take(max.saturating_mul(64)).collect();
    if chars.len() <= max {
        return text.to_owned();
    }
    let half = max.saturating_sub(1) / 2;
    let (head, tail) = (&chars[..half], &chars[chars.len() - half..]);
    head.iter().chain(&['…']).chain(tail).collect()
}

/// A number that a picture needs four digits of.
#[expect(clippy::cast_precision_loss, reason = "a picture needs four digits")]
pub(super) fn real(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_units() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1024 * 1024 - 1), "1023.9 KiB");
        assert_eq!(bytes(1024), "1.0 KiB");
        assert_eq!(bytes(43_201_331), "41.1 MiB");
        assert_eq!(bytes(u64::MAX), "15.9 EiB");
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(things(1, "file"), "1 file");
        assert_eq!(things(2000, "file"), "2,000 files");
    }

    #[test]
    fn times_have_three_digits() {
        assert_eq!(time(0.0), "0 ms");
        assert_eq!(time(0.04), "0.0 ms");
        assert_eq!(time(9.96), "10 ms");
        assert_eq!(time(999.7), "1.00 s");
        assert_eq!(time(4210.0), "4.21 s");
        assert_eq!(time(125_000.0), "2 min 5 s");
        assert_eq!(time(119_999.0), "2 min 0 s");
        assert_eq!(times(30.0, 3.0).unwrap(), "10.0×");
        assert_eq!(times(1.0, 0.8).unwrap(), "1.25×");
        assert_eq!(times(1.0, 0.0), None);
    }

    #[test]
    fn shares_do_not_hide_small_parts() {
        assert_eq!(percent(1, 0), "–");
        assert_eq!(percent(0, 7), "0.0 %");
        assert_eq!(percent(1, 1_000_000), "< 0.1 %");
        assert_eq!(percent(1, 3), "33.3 %");
        assert_eq!(percent(4096, 4000), "100.0 %");
        assert_eq!(percent(u64::MAX, u64::MAX), "100.0 %");
    }

    #[test]
    fn dates_know_leap_years() {
        assert_eq!(moment(0), "1970-01-01 00:00 UTC");
        assert_eq!(moment(951_782_399), "2000-02-28 23:59 UTC");
        assert_eq!(moment(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(moment(4_107_542_400), "2100-03-01 00:00 UTC");
        assert_eq!(moment(1_795_260_480), "2026-11-21 11:28 UTC");
        assert_eq!(moment(-1), "1969-12-31 23:59 UTC");
    }

    #[test]
    fn long_texts_keep_both_ends() {
        assert_eq!(clipped("short", 5), "short");
        assert_eq!(clipped("abcdefgh", 5), "ab…gh");
        assert!(clipped(&"ä".repeat(100_000), 99).chars().count() <= 99);
    }
}
