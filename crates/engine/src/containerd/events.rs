//! Events of a containerd.

use std::time::Duration;

use containerd_client::services::v1::SubscribeRequest;
use containerd_client::tonic::Streaming;
use containerd_client::types::Envelope;

use super::Containerd;
use crate::error::EngineError;

/// Events of one connection to containerd. Events from before this was made are missing: read the
/// state after it was made.
pub struct Events<'a> {
    containerd: &'a Containerd,
    stream: Streaming<Envelope>,
}

impl std::fmt::Debug for Events<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Events")
    }
}

impl Containerd {
    /// Subscribes to the events of this namespace under some topics, such as `/images/create`.
    ///
    /// # Errors
    /// If containerd does not respond.
    pub fn events(&self, topics: &[&str]) -> Result<Events<'_>, EngineError> {
        let namespace = &self.namespace;
        let filter = |topic: &&str| format!("topic==\"{topic}\",namespace==\"{namespace}\"");
        let filters: Vec<String> = topics.iter().map(filter).collect();
        let doing = "following what happens in containerd";
        let stream = self.call(doing, async |client| {
            let filters = filters.clone();
            let request = self.request(SubscribeRequest { filters });
            client.events().subscribe(request).await
        })?;
        let stream = stream.ok_or_else(|| over(doing, "it knows of no events".to_owned()))?;
        Ok(Events {
            containerd: self,
            stream,
        })
    }
}

impl Events<'_> {
    /// Waits for the next event, at most for `patience`, and returns whether there was one.
    ///
    /// # Errors
    /// If the stream ends: containerd ended, or was restarted.
    pub fn next(&mut self, patience: Duration) -> Result<bool, EngineError> {
        let doing = "following what happens in containerd";
        let stream = &mut self.stream;
        let next = self
            .containerd
            .runtime
            .block_on(async { tokio::time::timeout(patience, stream.message()).await });
        match next {
            Err(_) => Ok(false),
            Ok(Ok(Some(_))) => Ok(true),
            Ok(Ok(None)) => Err(over(doing, "there is no more".to_owned())),
            Ok(Err(status)) => Err(over(doing, status.message().to_owned())),
        }
    }
}

fn over(doing: &str, said: String) -> EngineError {
    EngineError::Failed {
        doing: doing.to_owned(),
        said,
    }
}
