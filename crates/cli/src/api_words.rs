//! Settings and fields of the node's API in messages of libraries, as the flags of the command line that set them.

/// Settings and fields as errors name them, each with its flag. What is a word of its own stands in backquotes.
const FLAGS: [(&str, &str); 15] = [
    ("auto: true", "--auto"),
    ("lazy=true", "--lazy"),
    ("max_bytes", "--max-bytes"),
    ("nic.address", "--nic ADDR"),
    ("nic.cache", "--nic-cache"),
    ("nic.cache_bytes", "--nic-cache-size"),
    ("nic.key", "--nic-key"),
    ("nic.name", "--nic-name"),
    ("nic.origin", "--origin"),
    ("nic.source", "--nic-source NAME"),
    ("nic.tls", "--nic-tls"),
    ("`run_args`", "--run-args"),
    ("`scratch`", "--scratch"),
    ("`timeout`", "--timeout"),
    ("`until`", "--until"),
];

/// Writes a message about settings for somebody who has given flags. What is part of a longer word or
/// of a path stays.
pub(crate) fn in_flags(message: &str) -> String {
    let mut message = message.to_owned();
    for (field, flag) in FLAGS {
        let mut from = 0;
        while let Some(at) = message[from..].find(field) {
            let (start, end) = (from + at, from + at + field.len());
            let begins = message[..start].ends_with([' ', '(']) || start == 0;
            let after = &message[end..];
            let ends = after.is_empty() || after.starts_with([' ', ',', ':', ';', ')']);
            from = end;
            if begins && ends {
                message.replace_range(start..end, flag);
                from = start + flag.len();
            }
        }
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_become_flags_and_paths_stay() {
        for (field, flag) in [
            ("nic:web needs nic.address", "nic:web needs --nic ADDR"),
            (
                "nic.cache and nic.origin are for others",
                "--nic-cache and --origin are for others",
            ),
            (
                "mounting: auto: true is not for it",
                "mounting: --auto is not for it",
            ),
            (
                "opening /srv/nic.cache: gone",
                "opening /srv/nic.cache: gone",
            ),
            ("opening nic.cache.old", "opening nic.cache.old"),
            (
                "waited until it ended; give it more time (`timeout`), or wait for something else (`until`); it said nothing",
                "waited until it ended; give it more time (--timeout), or wait for something else (--until); it said nothing",
            ),
            (
                "its boot images have more than 4 GiB (allow more with max_bytes)",
                "its boot images have more than 4 GiB (allow more with --max-bytes)",
            ),
            ("", ""),
        ] {
            assert_eq!(in_flags(field), flag);
        }
    }
}
