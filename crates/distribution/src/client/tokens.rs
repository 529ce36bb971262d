//! The credentials that a registry requires, cached until they expire.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use reqwest::header::HeaderValue;

use crate::{Challenge, Login, Zone};

/// Values that are kept: one for each repository and client.
const KEPT_MAX: usize = 4096;
/// A token is renewed so long before its end: it must not end on the way.
const MARGIN: Duration = Duration::from_secs(5);
/// The longest that a token is believed to be good, and a demand to be the same.
pub(super) const LIFETIME_MAX: Duration = Duration::from_secs(3600);

/// What a token is for, and the login that requested it.
type Key = (String, Option<Login>);

#[derive(Debug, Default)]
pub(super) struct Tokens(Mutex<HashMap<Key, Held>>);

/// A registry's challenge.
#[derive(Clone, Debug)]
pub(super) struct Demand {
    pub(super) challenge: Challenge,
    /// Where it was when it did.
    pub(super) by: Zone,
}

/// What is known before a request is sent.
#[derive(Debug)]
pub(super) enum Known {
    /// What the registry accepted last, and still should.
    Good(HeaderValue),
    /// That is over; this was demanded.
    Over(Demand),
    Nothing,
}

#[derive(Debug)]
struct Held {
    value: HeaderValue,
    until: Instant,
    demand: Demand,
}

impl Tokens {
    pub(super) fn known(&self, scope: &str, login: Option<&Login>) -> Known {
        let held = self.0.lock();
        match held.get(&(scope.to_owned(), login.cloned())) {
            Some(held) if Instant::now() < held.until => Known::Good(held.value.clone()),
            Some(held) => Known::Over(held.demand.clone()),
            None => Known::Nothing,
        }
    }

    pub(super) fn keep(
        &self,
        scope: &str,
        login: Option<&Login>,
        demand: Demand,
        value: HeaderValue,
        lifetime: Duration,
    ) {
        let now = Instant::now();
        let lifetime = lifetime.min(LIFETIME_MAX).saturating_sub(MARGIN);
        let held = Held {
            value,
            until: now + lifetime,
            demand,
        };
        let mut all = self.0.lock();
        all.retain(|_, held| now < held.until + LIFETIME_MAX);
        if all.len() >= KEPT_MAX {
            all.retain(|_, held| now < held.until);
        }
        if all.len() < KEPT_MAX {
            all.insert((scope.to_owned(), login.cloned()), held);
        }
    }
}
