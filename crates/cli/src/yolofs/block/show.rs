//! How commands about block images say what they did.

use serde_json::Value;

use crate::exit::Outcome;
use crate::output::{FormatArg, print};

pub(super) fn show(format: FormatArg, done: &Value, said: String) -> anyhow::Result<Outcome> {
    print(format.format(), done, |_| said)?;
    Ok(Outcome::Done)
}
