//! Ghosts: what was held once. They tell "evicted" from "never seen" without keeping a token of it.

use std::collections::{HashSet, VecDeque};

use crate::request::{Owner, Token};

/// Hashes of prefixes whose next token was held once: tells "evicted" from "never seen".
#[derive(Debug, Default)]
pub(super) struct Ghosts {
    order: VecDeque<[u8; 32]>,
    set: HashSet<[u8; 32]>,
}

/// 4,096 hashes are 256 KiB and some days of a house's evictions.
const N_GHOSTS: usize = 4096;

impl Ghosts {
    pub(super) fn remember(&mut self, owner: Owner, prefix: &[Token]) {
        let hash = prefix_hash(owner, prefix);
        if self.set.insert(hash) {
            self.order.push_back(hash);
        }
        if self.order.len() > N_GHOSTS
            && let Some(oldest) = self.order.pop_front()
        {
            self.set.remove(&oldest);
        }
    }

    pub(super) fn contain(&self, owner: Owner, prefix: &[Token]) -> bool {
        !self.set.is_empty()
            && (self.set.contains(&prefix_hash(owner, prefix))
                || self.set.contains(&prefix_hash(Owner::Public, prefix)))
    }
}

fn prefix_hash(owner: Owner, prefix: &[Token]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    match owner {
        Owner::Public => hasher.update(&[0; 32]),
        Owner::Private(id) => hasher.update(&id),
    };
    let bytes: Vec<u8> = prefix.iter().flat_map(|token| token.0.to_le_bytes()).collect();
    hasher.update(&bytes);
    *hasher.finalize().as_bytes()
}
