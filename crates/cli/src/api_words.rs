//! Settings and fields of the API in messages of libraries, as the flags of the command line that set them.
//!
//! A library does not know the command line: it names a setting in backquotes, as `` `run_dir` ``, or a field of
//! a request as the API has it. `cargo xtask flags` holds libraries to that.

/// Fields and settings that are not called as their flags are.
const OTHERWISE: &[(&str, &str)] = &[
    ("auto: true", "--auto"),
    ("boot: auto", "--boot auto"),
    ("lazy=true", "--lazy"),
    ("max_bytes", "--max-bytes"),
    ("nic.address", "--nic ADDR"),
    ("nic.cache", "--nic-cache"),
    ("nic.cache_bytes", "--nic-cache-size"),
    ("nic.key", "--nic-key"),
    ("nic.name", "--nic-name"),
    ("nic.origin", "--origin"),
    ("nic.others", "--nic ADDR"),
    ("nic.source", "--nic-source NAME"),
    ("nic.tls", "--nic-tls"),
    ("`redirect_networks`", "--redirect-network"),
    ("`token_hosts`", "--token-host"),
];

/// Settings that are called as their flags are, but for the dashes.
const SETTINGS: &[&str] = &[
    "address",
    "admin",
    "blobs",
    "blocks",
    "blocks_access",
    "blocks_open",
    "blocks_tls",
    "budget",
    "cache",
    "containerd",
    "data_root",
    "layers_fast",
    "listen",
    "name",
    "run_args",
    "run_dir",
    "runtime_class",
    "scratch",
    "size",
    "snapshotter",
    "store",
    "tiers",
    "timeout",
    "token_file",
    "under",
    "until",
    "upper",
    "upper_full",
    "username",
    "writable",
];

/// How a decoder names a field of a document that the user has written: such a field is no setting of ours.
const OF_A_DOCUMENT: &str = " field `";

/// Writes a message about settings for somebody who has given flags. What is part of a longer word or
/// of a path stays.
pub(crate) fn in_flags(message: &str) -> String {
    let mut message = message.to_owned();
    for (field, flag) in OTHERWISE {
        replace_words(&mut message, field, flag);
    }
    if !message.contains(OF_A_DOCUMENT) {
        for setting in SETTINGS {
            replace_words(&mut message, &format!("`{setting}`"), &flag_of(setting));
        }
    }
    message
}

fn flag_of(setting: &str) -> String {
    format!("--{}", setting.replace('_', "-"))
}

/// Replaces a word wherever it stands alone.
fn replace_words(message: &mut String, word: &str, by: &str) {
    let mut from = 0;
    while let Some(at) = message[from..].find(word) {
        let (start, end) = (from + at, from + at + word.len());
        let begins = message[..start].ends_with([' ', '(']) || start == 0;
        let after = &message[end..];
        let ends = after.is_empty() || after.starts_with([' ', ',', ':', ';', ')']);
        from = end;
        if begins && ends {
            message.replace_range(start..end, by);
            from = start + by.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

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
            (
                "`upper` and `layers_fast` must be different directories",
                "--upper and --layers-fast must be different directories",
            ),
            (
                "tiers.toml: unknown field `cache`, expected one of `name`, `size`",
                "tiers.toml: unknown field `cache`, expected one of `name`, `size`",
            ),
            ("", ""),
        ] {
            assert_eq!(in_flags(field), flag);
        }
    }

    /// Adds the flags of a command and of those below it.
    fn flags(command: &clap::Command, found: &mut BTreeSet<String>) {
        let own = command.get_arguments().filter_map(clap::Arg::get_long);
        found.extend(own.map(|name| format!("--{name}")));
        for below in command.get_subcommands() {
            flags(below, found);
        }
    }

    #[test]
    fn what_users_read_are_flags_that_there_are() {
        let mut known = BTreeSet::new();
        for command in [
            crate::bootimg_command(),
            crate::yolofs_command(),
            crate::nicfetch_command(),
        ] {
            flags(&command, &mut known);
        }
        let otherwise = OTHERWISE.iter().map(|(_, flag)| (*flag).to_owned());
        for text in otherwise.chain(SETTINGS.iter().map(|setting| flag_of(setting))) {
            let flag = text.split(' ').next().unwrap_or_default();
            assert!(known.contains(flag), "{flag} is no flag of ours");
        }
    }
}
