//! Sizes and durations as people write them: `"8MiB"`, `"2m"`.
//!
//! A *unit* is always written out, so that a bare number is never taken for the wrong one. Whole numbers only.

use std::time::Duration;

/// Bytes of a size such as `"512B"`, `"64KiB"`, `"8MiB"` or `"1GiB"`; `None` if it is not one or does not fit.
pub fn parse_size(text: &str) -> Option<u64> {
    let (number, unit) = split(text)?;
    let bytes = match unit {
        "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    number.checked_mul(bytes)
}

/// A duration such as `"30s"`, `"2m"`, `"1h"` or `"7d"`; `None` if it is not one or does not fit.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let (number, unit) = split(text)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 60 * 60,
        "d" => 24 * 60 * 60,
        _ => return None,
    };
    number.checked_mul(seconds).map(Duration::from_secs)
}

/// `bytes` as `parse_size` reads it, in the largest unit that divides it.
pub fn write_size(bytes: u64) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|(size, _)| bytes != 0 && bytes.is_multiple_of(*size)) {
        Some((size, unit)) => format!("{}{unit}", bytes / size),
        None => format!("{bytes}B"),
    }
}

/// `duration` as `parse_duration` reads it, in the largest unit that divides it; fractions of a second are cut off.
pub fn write_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let units = [(24 * 60 * 60, "d"), (60 * 60, "h"), (60, "m")];
    match units.into_iter().find(|(length, _)| seconds != 0 && seconds.is_multiple_of(*length)) {
        Some((length, unit)) => format!("{}{unit}", seconds / length),
        None => format!("{seconds}s"),
    }
}

/// Number and unit; `u64::from_str` alone would take a plus sign.
fn split(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|character: char| !character.is_ascii_digit())?;
    let (number, unit) = text.split_at(end);
    Some((number.parse().ok()?, unit.trim_start()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_need_a_whole_number_and_a_binary_unit() {
        for (text, expected) in [
            ("512B", Some(512)),
            ("1KiB", Some(1024)),
            ("8MiB", Some(8 << 20)),
            ("3 GiB", Some(3 << 30)),
            ("0B", Some(0)),
            ("", None),
            ("8", None),
            ("MiB", None),
            ("8MB", None),
            ("8mib", None),
            ("+8MiB", None),
            ("-8MiB", None),
            ("1.5GiB", None),
            ("18446744073709551615B", Some(u64::MAX)),
            ("18446744073709551616B", None),
            ("18446744073709551615GiB", None),
        ] {
            assert_eq!(parse_size(text), expected, "{text:?}");
        }
    }

    #[test]
    fn durations_need_a_whole_number_and_a_unit() {
        for (text, seconds) in [
            ("30s", Some(30)),
            ("2m", Some(120)),
            ("1h", Some(3600)),
            ("7d", Some(604_800)),
            ("2 m", Some(120)),
            ("30", None),
            ("1h30m", None),
            ("0.5h", None),
            ("1M", None),
            ("١s", None),
            ("18446744073709551615d", None),
        ] {
            assert_eq!(parse_duration(text), seconds.map(Duration::from_secs), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(number: u64) {
            prop_assert_eq!(parse_size(&write_size(number)), Some(number));
            let duration = Duration::from_secs(number);
            prop_assert_eq!(parse_duration(&write_duration(duration)), Some(duration));
        }

        #[test]
        fn no_text_panics(text: String) {
            parse_size(&text);
            parse_duration(&text);
        }
    }
}
