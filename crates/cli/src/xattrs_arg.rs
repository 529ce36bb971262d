//! The `--all-xattrs` flag.

use mounting::xattrs::answers;
use yolofs::XattrAnswers;

/// Set in the environment of whoever starts the daemon in the background.
const ALL_XATTRS_ENV: &str = "YOLOFS_ALL_XATTRS";

#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct XattrsArg {
    /// Answer requests for extended attributes even if no file has any: for builders that read layers
    /// (COPY --link, nerdctl diff). Costs a request for each file that an overlay looks up
    #[arg(long, env = ALL_XATTRS_ENV)]
    pub(crate) all_xattrs: bool,
}

impl XattrsArg {
    pub(crate) const fn answers(self) -> XattrAnswers {
        answers(self.all_xattrs)
    }
}
