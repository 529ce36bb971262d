//! Why a request failed, as sent to its client.

use crate::wire::ErrorCode;
use chunks::CatalogError;

/// Why a request failed; the connection stays open unless the client broke a rule of the protocol.
pub(super) struct Refusal(pub(super) ErrorCode, pub(super) String);

impl Refusal {
    pub(super) fn rule(text: &str) -> Self {
        Self(ErrorCode::Rule, text.to_owned())
    }
}

impl From<CatalogError> for Refusal {
    fn from(error: CatalogError) -> Self {
        let code = match &error {
            CatalogError::BootLength { .. } => ErrorCode::TooLarge,
            CatalogError::NoRoom => ErrorCode::Busy,
            CatalogError::WrongBoot { .. } => ErrorCode::Rule,
            _ => {
                // The client has no use for our paths.
                log::warn!("{error}: {:?}", std::error::Error::source(&error));
                return Self(ErrorCode::Failed, "the catalog failed".to_owned());
            }
        };
        Self(code, error.to_string())
    }
}
