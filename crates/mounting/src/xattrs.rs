//! Whether requests for extended attributes are answered where no file has any.

use yolofs::XattrAnswers;

/// Returns which requests are answered: all, or those before the first one of an overlay.
#[must_use]
pub const fn answers(all: bool) -> XattrAnswers {
    if all {
        XattrAnswers::Always
    } else {
        XattrAnswers::UntilOverlay
    }
}
