//! Who may ask what: decided once for each request, before its body is read.
//!
//! A *caller* is who asks, by the key that came along or, without one, by its source address. Three things are looked at in this
//! order: that the browser of a stranger's page is not what asks (`Host`, `Origin`), the key, and what its client may do.
//! Nothing here reads a body or knows a dialect.

use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};

use super::answer::Peer;
use super::error::ApiError;
use super::rate::Meter;
use crate::config::{self, ClientEntry, KeyHash};
use crate::request::{Client, Dialect, LayoutMode, Owner, Priority};

/// Where clients of the different dialects put their key; the first also as `Bearer KEY`.
const KEY_HEADERS: [&str; 3] = ["authorization", "x-api-key", "api-key"];

/// Says no more than that the daemon is alive and whether it is ready: for whoever watches it, from anywhere.
const OPEN: [&str; 2] = ["/health", "/ready"];

/// hob's own routes show and change what belongs to the whole house.
const ADMIN: &str = "/hob/";

/// Browsers keep what a preflight said for so long, in seconds.
const PREFLIGHT_SECONDS: &str = "600";

pub(super) struct Access {
    clients: Vec<Arc<Known>>,
    allow_anonymous: bool,
    hosts: Vec<String>,
    origins: Vec<String>,
    house_key: Option<KeyHash>,
}

struct Known {
    entry: ClientEntry,
    meter: Option<Meter>,
}

/// Who asks.
#[derive(Clone)]
pub(super) struct Caller {
    /// The client's name, or the address that it asks from.
    pub(super) name: Arc<str>,
    /// May see and change what belongs to the whole house.
    pub(super) is_admin: bool,
    known: Option<Arc<Known>>,
}

impl Caller {
    /// Whose requests this caller's own are.
    pub(super) fn owner(&self) -> Owner {
        Client { name: self.name.to_string(), salt: None, dialect: Dialect::OpenAi }.owner()
    }

    pub(super) fn layout(&self) -> Option<LayoutMode> {
        self.known.as_ref()?.entry.layout
    }

    pub(super) fn priority(&self) -> Priority {
        self.known.as_ref().map_or(Priority::Interactive, |known| known.entry.priority)
    }

    /// What it talks to when it names no model that is here: coding agents know the cloud's names alone.
    pub(super) fn choose_model(&self, model: &mut String, models: &[String]) {
        if let Some(profile) = self.known.as_ref().and_then(|known| known.entry.profile.as_ref())
            && !models.contains(model)
        {
            model.clone_from(profile);
        }
    }
}

impl Caller {
    fn check(&self, path: &str, now: Duration) -> Result<(), ApiError> {
        let Some(known) = &self.known else {
            return match path.starts_with(ADMIN) && !self.is_admin {
                true => Err(ApiError::admin_needs_key()),
                false => Ok(()),
            };
        };
        let ClientEntry { name, routes, .. } = &known.entry;
        let is_allowed = match routes.is_empty() {
            true => !path.starts_with(ADMIN),
            false => routes.iter().any(|route| is_below(path, route)),
        };
        if !is_allowed {
            return Err(ApiError::route_not_allowed(name, path));
        }
        match known.meter.as_ref().map(|meter| meter.take(now)) {
            Some(Err(retry_after)) => Err(ApiError::too_many_requests(name, retry_after)),
            _ => Ok(()),
        }
    }
}

/// What is asked for, but for its body.
pub(super) struct Attempt<'a> {
    pub(super) peer: &'a Peer,
    pub(super) path: &'a str,
    pub(super) headers: &'a HeaderMap,
}

impl Access {
    /// `house_key`: of commands on this machine, which may do everything.
    pub(super) fn new(access: config::Access, house_key: Option<KeyHash>) -> Access {
        let known = |entry: ClientEntry| Arc::new(Known { meter: entry.rate.map(Meter::new), entry });
        Access {
            clients: access.clients.into_iter().map(known).collect(),
            allow_anonymous: access.allow_anonymous,
            hosts: access.hosts,
            origins: access.origins,
            house_key,
        }
    }

    /// Who asks. `now`: since the start. `None`: nobody that is known, and it need not be.
    pub(super) fn admit(&self, attempt: &Attempt, now: Duration) -> Result<Option<Caller>, ApiError> {
        let is_open = OPEN.contains(&attempt.path);
        if !is_open {
            self.check_host(attempt)?;
        }
        self.check_origin(attempt.headers)?;
        match self.caller(attempt) {
            Err(_) if is_open => Ok(None),
            Err(error) => Err(error),
            Ok(caller) => {
                if !is_open {
                    caller.check(attempt.path, now)?;
                }
                Ok(Some(caller))
            }
        }
    }

    fn caller(&self, attempt: &Attempt) -> Result<Caller, ApiError> {
        let by_address = |is_admin| Caller { name: attempt.peer.0.clone(), is_admin, known: None };
        let key = key(attempt.headers);
        // Whatever a client sends while nobody has a key is a habit of its kind: many cannot be set up without one.
        if self.clients.is_empty() {
            return Ok(by_address(attempt.peer.is_here()));
        }
        let Some(key) = key else {
            return match self.allow_anonymous {
                true => Ok(by_address(false)),
                false => Err(ApiError::no_key()),
            };
        };
        let hash = KeyHash::of(key);
        if self.house_key == Some(hash) {
            return Ok(by_address(true));
        }
        // All are compared, each in a time that tells nothing.
        let found = self.clients.iter().fold(None, |found, known| match known.entry.key == hash {
            true => Some(known),
            false => found,
        });
        let known = found.ok_or_else(ApiError::unknown_key)?;
        let is_admin = known.entry.routes.iter().any(|route| is_below(ADMIN, route));
        Ok(Caller { name: known.entry.name.as_str().into(), is_admin, known: Some(Arc::clone(known)) })
    }

    /// A page that a stranger's name leads to this machine (DNS rebinding) sends that name along.
    fn check_host(&self, attempt: &Attempt) -> Result<(), ApiError> {
        let Some(host) = attempt.headers.get(header::HOST).filter(|_| !attempt.peer.is_unix()) else { return Ok(()) };
        let name = host.to_str().map(host_name).unwrap_or_default();
        let is_address = name.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok();
        match is_address || name == "localhost" || self.hosts.contains(&name) {
            true => Ok(()),
            false => Err(ApiError::foreign_host(&name)),
        }
    }

    /// Only pages of hob's own, and of those that are configured, may ask from a browser.
    fn check_origin(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
        let origin = origin.to_str().unwrap_or_default().to_lowercase();
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        let is_own = origin.split_once("://").is_some_and(|(_, of)| !host.is_empty() && of.eq_ignore_ascii_case(host));
        match is_own || self.origins.contains(&origin) {
            true => Ok(()),
            false => Err(ApiError::foreign_origin(&origin)),
        }
    }

    /// What a browser must be told so that it gives an allowed page the answer.
    pub(super) fn cors(&self, headers: &HeaderMap) -> Vec<(HeaderName, HeaderValue)> {
        let origin = headers.get(header::ORIGIN);
        let Some(origin) =
            origin.filter(|origin| origin.to_str().is_ok_and(|origin| self.origins.contains(&origin.to_lowercase())))
        else {
            return Vec::new();
        };
        let fixed = HeaderValue::from_static;
        vec![
            (header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone()),
            (header::VARY, fixed("origin")),
            (header::ACCESS_CONTROL_ALLOW_METHODS, fixed("GET, POST, DELETE")),
            (
                header::ACCESS_CONTROL_ALLOW_HEADERS,
                fixed("authorization, content-type, x-api-key, x-hob-layout, x-hob-priority"),
            ),
            (header::ACCESS_CONTROL_EXPOSE_HEADERS, fixed("x-request-id, x-hob-cache")),
            (header::ACCESS_CONTROL_MAX_AGE, fixed(PREFLIGHT_SECONDS)),
        ]
    }
}

fn key(headers: &HeaderMap) -> Option<&str> {
    let values = KEY_HEADERS.iter().filter_map(|name| headers.get(*name)?.to_str().ok());
    let mut keys = values.map(|value| match value.split_at_checked("bearer ".len()) {
        Some((scheme, key)) if scheme.eq_ignore_ascii_case("bearer ") => key.trim(),
        _ => value.trim(),
    });
    // Anthropic's own client sends an empty one beside the other.
    keys.find(|key| !key.is_empty())
}

/// The name in `nas.local:8088`, in lower case, without the dot at its end that a resolver would ignore.
fn host_name(host: &str) -> String {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.is_empty() => name,
        _ => host,
    };
    name.trim_end_matches('.').to_lowercase()
}

/// Whether `path` is `route` or lies below it.
fn is_below(path: &str, route: &str) -> bool {
    let route = route.trim_end_matches('/');
    path.trim_end_matches('/') == route || path.strip_prefix(route).is_some_and(|rest| rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_stands_for_what_is_below_it_and_nothing_beside() {
        for (path, route, expected) in [
            ("/v1/models", "/v1/", true),
            ("/v1/models", "/v1", true),
            ("/v1", "/v1/", true),
            ("/v10/models", "/v1", false),
            ("/hob/", "/", true),
            ("/hob/", "/hob/v1/pins", false),
        ] {
            assert_eq!(is_below(path, route), expected, "{path} below {route}");
        }
    }

    #[test]
    fn hosts_are_compared_without_port_case_and_last_dot() {
        for (host, expected) in [
            ("NAS.local:8088", "nas.local"),
            ("nas.local.", "nas.local"),
            ("[::1]:80", "[::1]"),
            ("::1", ":"),
            ("", ""),
        ] {
            assert_eq!(host_name(host), expected, "{host}");
        }
    }

    const HASSIO: &str = "hob-1";
    const PHONE: &str = "hob-2";
    const ADMIN_KEY: &str = "hob-3";
    const HOUSE: &str = "hob-house";

    fn access(allow_anonymous: bool, keys: &[(&str, &str, &[&str])]) -> Access {
        let entry = |&(name, key, routes): &(&str, &str, &[&str])| ClientEntry {
            routes: routes.iter().map(|&route| route.to_owned()).collect(),
            ..ClientEntry::plain(name.to_owned(), KeyHash::of(key))
        };
        let access = config::Access {
            allow_anonymous,
            hosts: vec!["nas.local".into()],
            origins: vec!["http://chat.local:3000".into()],
            clients: keys.iter().map(entry).collect(),
        };
        Access::new(access, Some(KeyHash::of(HOUSE)))
    }

    fn with_keys(allow_anonymous: bool) -> Access {
        let all: &[&str] = &["/"];
        let chat: &[&str] = &["/v1/chat/"];
        access(allow_anonymous, &[("hassio", HASSIO, &[]), ("phone", PHONE, chat), ("admin", ADMIN_KEY, all)])
    }

    /// The status, or who it is; `!` behind whoever may administrate.
    fn ask(access: &Access, peer: &str, path: &str, headers: &[(&'static str, &str)]) -> String {
        let headers =
            headers.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect();
        let attempt = Attempt { peer: &Peer(peer.into()), path, headers: &headers };
        match access.admit(&attempt, Duration::ZERO) {
            Ok(None) => "open".into(),
            Ok(Some(caller)) => format!("{}{}", caller.name, if caller.is_admin { "!" } else { "" }),
            Err(error) => error.status.as_u16().to_string(),
        }
    }

    const CHAT: &str = "/v1/chat/completions";
    const PINS: &str = "/hob/v1/pins";
    const LAN: &str = "192.168.1.7";
    const HERE: &str = "127.0.0.1";

    #[test]
    fn without_keys_an_address_is_the_client_and_this_machine_alone_administrates() {
        let open = access(true, &[]);
        for (peer, path, headers, expected) in [
            (HERE, CHAT, &[][..], "127.0.0.1!"),
            (HERE, PINS, &[], "127.0.0.1!"),
            ("unix", PINS, &[], "unix!"),
            (HERE, CHAT, &[("authorization", "Bearer sk-anything")], "127.0.0.1!"),
            (LAN, CHAT, &[("authorization", "Bearer sk-anything")], "192.168.1.7"),
            (LAN, PINS, &[("authorization", "Bearer sk-anything")], "403"),
            (LAN, "/hob/", &[], "403"),
            (LAN, "/health", &[], "192.168.1.7"),
        ] {
            assert_eq!(ask(&open, peer, path, headers), expected, "{peer} {path} {headers:?}");
        }
    }

    #[test]
    fn with_keys_only_they_open() {
        let keyed = with_keys(false);
        let (long, other) = (format!("Bearer {}", "x".repeat(4_000)), format!("Bearer {HASSIO}x"));
        for (peer, path, headers, expected) in [
            (LAN, CHAT, &[][..], "401"),
            (HERE, CHAT, &[], "401"),
            ("unix", CHAT, &[], "401"),
            (LAN, CHAT, &[("authorization", "Bearer wrong")], "401"),
            (LAN, CHAT, &[("authorization", "Bearer ")], "401"),
            (LAN, CHAT, &[("authorization", &*long)], "401"),
            (LAN, CHAT, &[("authorization", &*other)], "401"),
            (LAN, CHAT, &[("authorization", "Basic aG9iLTE=")], "401"),
            (LAN, CHAT, &[("authorization", "Bearer hob-1")], "hassio"),
            (LAN, CHAT, &[("authorization", "bearer hob-1")], "hassio"),
            (LAN, CHAT, &[("x-api-key", "hob-1")], "hassio"),
            (LAN, CHAT, &[("api-key", "hob-1")], "hassio"),
            (LAN, CHAT, &[("authorization", "Bearer"), ("x-api-key", "hob-1")], "401"),
            (LAN, PINS, &[("x-api-key", "hob-1")], "403"),
            (LAN, "/hob/v1/../v1/pins", &[("x-api-key", "hob-1")], "403"),
            (LAN, "/v1/models", &[("x-api-key", "hob-2")], "403"),
            (LAN, CHAT, &[("x-api-key", "hob-2")], "phone"),
            (LAN, "/v1/chat", &[("x-api-key", "hob-2")], "phone"),
            (LAN, "/v1/chat-completions", &[("x-api-key", "hob-2")], "403"),
            (LAN, PINS, &[("x-api-key", "hob-3")], "admin!"),
            (HERE, PINS, &[("authorization", "Bearer hob-house")], "127.0.0.1!"),
            (LAN, "/health", &[], "open"),
            (LAN, "/ready", &[("authorization", "Bearer wrong")], "open"),
            (LAN, "/ready", &[("authorization", "Bearer hob-1")], "hassio"),
            (LAN, "/ready/x", &[], "401"),
        ] {
            assert_eq!(ask(&keyed, peer, path, headers), expected, "{peer} {path} {headers:?}");
        }
        let both = with_keys(true);
        assert_eq!(ask(&both, LAN, CHAT, &[]), LAN);
        assert_eq!(ask(&both, LAN, CHAT, &[("x-api-key", "wrong")]), "401", "an unknown key is nobody's");
        assert_eq!(ask(&both, HERE, PINS, &[]), "403");
    }

    #[test]
    fn names_and_pages_of_strangers_are_refused() {
        let open = access(true, &[]);
        for (host, expected) in [
            ("127.0.0.1:8088", "127.0.0.1!"),
            ("[::1]:8088", "127.0.0.1!"),
            ("localhost", "127.0.0.1!"),
            ("LOCALHOST.:8088", "127.0.0.1!"),
            ("nas.local:8088", "127.0.0.1!"),
            ("192.168.1.2", "127.0.0.1!"),
            ("evil.example", "403"),
            ("127.0.0.1.evil.example", "403"),
            ("localhost.evil.example", "403"),
            ("evil.nas.local", "403"),
            ("", "403"),
        ] {
            assert_eq!(ask(&open, HERE, CHAT, &[("host", host)]), expected, "{host}");
        }
        assert_eq!(ask(&open, "unix", CHAT, &[("host", "hob")]), "unix!");
        assert_eq!(ask(&open, HERE, "/health", &[("host", "evil.example")]), "127.0.0.1!");
        for (host, origin, expected) in [
            ("nas.local:8088", "http://nas.local:8088", "127.0.0.1!"),
            ("nas.local:8088", "http://chat.local:3000", "127.0.0.1!"),
            ("nas.local:8088", "http://CHAT.local:3000", "127.0.0.1!"),
            ("nas.local:8088", "http://chat.local", "403"),
            ("nas.local:8088", "http://nas.local", "403"),
            ("nas.local:8088", "https://evil.example", "403"),
            ("nas.local:8088", "null", "403"),
            ("nas.local:8088", "", "403"),
        ] {
            let headers = [("host", host), ("origin", origin)];
            assert_eq!(ask(&open, HERE, CHAT, &headers), expected, "{origin} at {host}");
        }
    }

    #[test]
    fn a_client_that_asks_too_often_is_told_when_to_come_again() {
        let rate = Some(config::Rate { n_requests: 1, per: Duration::from_secs(60) });
        let client = ClientEntry { rate, ..ClientEntry::plain("phone".into(), KeyHash::of(PHONE)) };
        let access = Access::new(config::Access { clients: vec![client], ..config::Access::default() }, None);
        let asked = || ask(&access, LAN, CHAT, &[("x-api-key", PHONE)]);
        assert_eq!((&*asked(), &*asked()), ("phone", "429"));
        assert_eq!(
            ask(&access, LAN, "/health", &[("x-api-key", PHONE)]),
            "phone",
            "whether it lives may always be asked"
        );
    }
}
