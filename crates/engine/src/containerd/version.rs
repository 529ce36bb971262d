//! The version of a containerd.

use std::path::Path;
use std::time::Duration;

use containerd_client::Client;
use containerd_client::tonic::Request;

use super::with_causes;
use crate::call::timed_out;
use crate::error::EngineError;

/// Returns the version of the containerd that listens at `address`.
///
/// # Errors
/// If no process responds there within `patience`.
pub fn version_at(address: &Path, patience: Duration) -> Result<String, EngineError> {
    let doing = format!("asking containerd at {} for its version", address.display());
    let failed = |said: String| EngineError::Failed {
        doing: doing.clone(),
        said,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| failed(error.to_string()))?;
    let asked = runtime.block_on(async {
        tokio::time::timeout(patience, async {
            let client = Client::from_path(address)
                .await
                .map_err(|error| failed(with_causes(&error)))?;
            let answer = client.version().version(Request::new(())).await;
            answer.map_err(|status| failed(status.message().to_owned()))
        })
        .await
    });
    let answer = asked.map_err(|_| timed_out(&doing, patience))??;
    Ok(answer.into_inner().version)
}
