//! Events of images and containers, from Docker.

use std::time::{Duration, Instant};

use serde::Deserialize;

use super::Docker;
use crate::call::{Follow, Followed};
use crate::error::EngineError;

/// The longest event: containers have their labels in them.
const EVENT_MAX: usize = 1 << 20;

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// An image: `pull`, `tag`, `untag`, `delete`, `load`, `import`, `prune`.
    Image,
    /// A container: `create`, `start`, `die`, `destroy`, `commit`.
    Container,
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The kind of its object.
    pub kind: EventKind,
    /// The action.
    pub action: String,
    /// The image's name or ID, or the container's ID.
    pub id: String,
}

/// Events, from the moment on when this was made.
#[derive(Debug)]
pub struct Events {
    follow: Follow,
    line: Vec<u8>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct EventAnswer {
    #[serde(rename = "Type")]
    kind: String,
    #[serde(default)]
    action: String,
    #[serde(default)]
    actor: Actor,
}

#[derive(Default, Deserialize)]
struct Actor {
    #[serde(rename = "ID", default)]
    id: String,
}

impl Docker {
    /// Subscribes to the events of images and containers. Events from before the client is ready may be
    /// missed: read the images after the first event, or after a while.
    ///
    /// # Errors
    /// If the client cannot be started.
    pub fn events(&self) -> Result<Events, EngineError> {
        let filters = ["--filter", "type=image", "--filter", "type=container"];
        let args = ["events", "--format", "{{json .}}"];
        let client = self.client(args.iter().chain(&filters));
        Ok(Events {
            follow: Follow::start("following Docker's events", client)?,
            line: Vec::new(),
        })
    }
}

impl Events {
    /// Waits for the next event, at most for `patience`; `Ok(None)` if there is none.
    ///
    /// # Errors
    /// If the stream ends: the daemon ended, or was restarted.
    pub fn next(&mut self, patience: Duration) -> Result<Option<Event>, EngineError> {
        let asked = Instant::now();
        loop {
            if let Some(event) = self.take_line() {
                return Ok(Some(event));
            }
            match self.follow.next(patience.saturating_sub(asked.elapsed())) {
                Followed::Bytes(bytes) => self.line.extend_from_slice(&bytes),
                Followed::Quiet => return Ok(None),
                Followed::Ended => {
                    return Err(EngineError::Failed {
                        doing: "following Docker's events".to_owned(),
                        said: "there are no more".to_owned(),
                    });
                }
            }
        }
    }

    /// Takes whole lines up to the first that is an event.
    fn take_line(&mut self) -> Option<Event> {
        while let Some(end) = self.line.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.line.drain(..=end).collect();
            if let Some(event) = parse(&line) {
                return Some(event);
            }
        }
        if self.line.len() > EVENT_MAX {
            self.line.clear();
        }
        None
    }
}

fn parse(line: &[u8]) -> Option<Event> {
    let answer: EventAnswer = serde_json::from_slice(line).ok()?;
    let kind = match answer.kind.as_str() {
        "image" => EventKind::Image,
        "container" => EventKind::Container,
        _ => return None,
    };
    Some(Event {
        kind,
        action: answer.action,
        id: answer.actor.id,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_events_are_events() {
        let event = br#"{"Type":"image","Action":"untag","Actor":{"ID":"sha256:ab"}}"#;
        let expected = Event {
            kind: EventKind::Image,
            action: "untag".to_owned(),
            id: "sha256:ab".to_owned(),
        };
        assert_eq!(parse(event), Some(expected));
        assert_eq!(parse(b"Error: EOF"), None);
        assert_eq!(
            parse(br#"{"Type":"network","Action":"x","Actor":{}}"#),
            None
        );
    }
}
