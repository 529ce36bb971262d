//! Unique names of files and directories.

use anyhow::anyhow;

/// Hexadecimal digits of the number.
const DIGITS: usize = 32;

/// Returns a unique name: `prefix` and a random number.
///
/// # Errors
/// If the system has no random numbers.
pub fn random_name(prefix: &str) -> anyhow::Result<String> {
    let mut bytes = [0; DIGITS / 2];
    getrandom::fill(&mut bytes).map_err(|error| anyhow!("asking for a random number: {error}"))?;
    let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
    Ok(prefix.to_owned() + &digits.collect::<String>())
}

/// Returns whether a part of a name is what [`random_name`] appends.
pub fn is_number(part: &str) -> bool {
    let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    part.len() == DIGITS && part.as_bytes().iter().all(is_digit)
}
