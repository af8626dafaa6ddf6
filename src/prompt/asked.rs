//! Pins that clients asked for: what stands in front of a conversation, kept as text, so that another model or template finds
//! its own tokens for it.
//!
//! A *wish* is one such pin's name with the text in front of the first turn. It outlives the daemon in a file that is private,
//! as the text is. Whether there is room for it, the scheduler knows.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tracing::warn;

use super::store;
use crate::request::{Client, Dialect, Message, Owner, Priority, Request, Role, Sampling, Wanted};

/// A pin as its client asked for it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PinWish {
    pub name: String,
    /// Everybody in the house may use it.
    pub is_public: bool,
    client: String,
    salt: Option<String>,
    model: String,
    system: Vec<Said>,
    tools: Vec<String>,
}

/// A system message.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Said {
    content: String,
    name: Option<String>,
    is_developers: bool,
    n_marked_bytes: usize,
}

impl PinWish {
    /// What stands in front of the first turn of `request`.
    pub fn of(name: String, is_public: bool, request: &Request) -> PinWish {
        let is_system = |message: &&Message| matches!(message.role, Role::System | Role::Developer);
        let said = |message: &Message| Said {
            content: message.content.clone(),
            name: message.name.clone(),
            is_developers: message.role == Role::Developer,
            n_marked_bytes: message.n_marked_bytes,
        };
        PinWish {
            name,
            is_public,
            client: request.client.name.clone(),
            salt: request.client.salt.clone(),
            model: request.model.clone(),
            system: request.messages.iter().take_while(is_system).map(said).collect(),
            tools: request.tools.clone(),
        }
    }

    pub fn owner(&self) -> Owner {
        if self.is_public { Owner::Public } else { self.client().owner() }
    }

    fn client(&self) -> Client {
        Client { name: self.client.clone(), salt: self.salt.clone(), dialect: Dialect::OpenAi }
    }

    /// The shortest request that begins with it.
    pub(super) fn request(&self) -> Request {
        let system = self.system.iter().map(|said| Message {
            name: said.name.clone(),
            n_marked_bytes: said.n_marked_bytes,
            ..Message::text(if said.is_developers { Role::Developer } else { Role::System }, said.content.as_str())
        });
        Request {
            model: self.model.clone(),
            messages: system.chain([Message::text(Role::User, "…")]).collect(),
            tools: self.tools.clone(),
            sampling: Sampling::default(),
            wanted: Wanted::default(),
            n_logprobs: None,
            max_tokens: None,
            stop: Vec::new(),
            client: self.client(),
            conversation: None,
            layout: None,
            priority: Priority::default(),
        }
    }
}

/// All wishes, and the file that they outlive a restart in.
#[derive(Default)]
pub(super) struct Wishes {
    wishes: Vec<PinWish>,
    file: Option<PathBuf>,
}

impl Wishes {
    /// What lies in `file`, or nothing. A file that cannot be used is told of and ignored.
    pub(super) fn load(file: &Path) -> Wishes {
        let wishes = store::load(file).unwrap_or_else(|error| {
            warn!(%error, "pins that clients asked for are not known any more");
            Vec::new()
        });
        Wishes { wishes, file: Some(file.to_owned()) }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &PinWish> {
        self.wishes.iter()
    }

    /// Keeps `wish`, in the place of the one with its name.
    pub(super) fn keep(&mut self, wish: PinWish) -> Result<(), String> {
        let mut wishes = self.wishes.clone();
        wishes.retain(|other| other.name != wish.name);
        wishes.push(wish);
        self.set(wishes).map(drop)
    }

    /// Forgets the wish called `name`, if it is of `owner`'s client; `None`: whosever it is. Whether there was one.
    pub(super) fn remove(&mut self, name: &str, owner: Option<Owner>) -> Result<bool, String> {
        let is_meant = |wish: &PinWish| wish.name == name && owner.is_none_or(|owner| owner.is_client_of(wish.owner()));
        self.set(self.wishes.iter().filter(|wish| !is_meant(wish)).cloned().collect())
    }

    /// Forgets the private ones of `whose` client; `None`: of all clients. Public ones are the house's.
    pub(super) fn forget(&mut self, whose: Option<Owner>) -> Result<bool, String> {
        let is_meant = |wish: &PinWish| !wish.is_public && whose.is_none_or(|owner| owner.is_client_of(wish.owner()));
        self.set(self.wishes.iter().filter(|wish| !is_meant(wish)).cloned().collect())
    }

    /// Whether anything changed. What cannot be saved is not changed either.
    fn set(&mut self, wishes: Vec<PinWish>) -> Result<bool, String> {
        if wishes == self.wishes {
            return Ok(false);
        }
        if let Some(file) = &self.file {
            store::save(file, &wishes).map_err(|error| error.to_string())?;
        }
        self.wishes = wishes;
        Ok(true)
    }
}
