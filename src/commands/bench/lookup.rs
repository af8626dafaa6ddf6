//! What it costs to find a prompt in a full prefix tree.
//!
//! A *lookup* is `Tree::find` for one prompt. The tree is shaped like a busy house's: a head for everybody, clients with long
//! heads of their own, conversations behind those.

use std::time::{Duration, Instant};

use super::median;
use crate::engine::SeqId;
use crate::kv::Holder;
use crate::kv::tree::Tree;
use crate::request::{Owner, Token};

/// Tokens that `full_tree` holds.
pub const N_HELD: usize = N_HEAD + N_CLIENTS * (N_CLIENT_HEAD + N_CONVERSATIONS * N_CONVERSATION);

const N_HEAD: usize = 4_000;
const N_CLIENTS: usize = 8;
const N_CLIENT_HEAD: usize = 4_000;
const N_CONVERSATIONS: usize = 8;
const N_CONVERSATION: usize = 1_000;

/// New tokens behind what is held: a question.
const N_QUESTION: usize = 30;

/// Lookups measured: more than enough for a median of something that takes microseconds.
const N_LOOKUPS: usize = 2_000;

/// A prompt, and whose it is.
pub type Prompt = (Owner, Vec<Token>);

/// A tree that holds 100,000 tokens, and for each of its conversations the prompt of the next question.
pub fn full_tree() -> (Tree, Vec<Prompt>) {
    let mut random = fastrand::Rng::with_seed(1);
    let mut tokens = |n: usize| -> Vec<Token> { (0..n).map(|_| Token(random.i32(0..32_000))).collect() };
    let (mut tree, mut prompts) = (Tree::new(), Vec::new());
    let head = tokens(N_HEAD);
    hold(&mut tree, Holder::HOUSE, &head, SeqId(0));
    for client in 0..N_CLIENTS {
        let owner = Owner::Private([client as u8; 32]);
        let client_head = tokens(N_CLIENT_HEAD);
        for conversation in 0..N_CONVERSATIONS {
            let seq = SeqId((1 + client * N_CONVERSATIONS + conversation) as u16);
            let mut prompt = [head.as_slice(), &client_head, &tokens(N_CONVERSATION)].concat();
            hold(&mut tree, owner.into(), &prompt, seq);
            prompt.extend(tokens(N_QUESTION));
            prompts.push((owner, prompt));
        }
    }
    (tree, prompts)
}

/// Adds `tokens` as a finished sequence leaves them.
pub(super) fn hold(tree: &mut Tree, holder: Holder, tokens: &[Token], seq: SeqId) {
    let hit = tree.find(holder, tokens);
    let node = tree.lock(hit);
    let extended = tree.extend(node, holder, &tokens[hit.n_tokens..], seq);
    tree.unlock(extended.node);
}

/// The median time of a lookup in `full_tree`.
pub(super) fn measure() -> Duration {
    let (tree, prompts) = full_tree();
    let times = prompts.iter().cycle().take(N_LOOKUPS).map(|(owner, tokens)| {
        let started = Instant::now();
        let hit = std::hint::black_box(tree.find(Holder::bare(*owner), tokens));
        let time = started.elapsed();
        debug_assert_eq!(hit.n_tokens, tokens.len() - N_QUESTION, "each conversation is held");
        time
    });
    median(times.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_full_tree_holds_a_hundred_thousand_tokens_and_finds_each_conversation() {
        let (tree, prompts) = full_tree();
        assert_eq!((tree.n_cells(), N_HELD, prompts.len()), (100_000, 100_000, 64));
        for (owner, tokens) in &prompts {
            assert_eq!(tree.find(Holder::bare(*owner), tokens).n_tokens, 9_000);
        }
        tree.check();
    }
}
