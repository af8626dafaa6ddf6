//! Fair shares: how many prompt tokens were computed for each client of late. Pure.
//!
//! A *share* counts them for as long as they matter. It is the virtual token counter of Sheng et al., "Fairness in Serving Large
//! Language Models" (OSDI 2024, <https://arxiv.org/abs/2401.00588>), of prompts alone: who has something to compute again after
//! a pause is not owed what it did not ask for, and begins where the least served of those who wait stands; what it had before
//! that is not forgiven. Tokens of answers are not counted: each running answer has one in every step, whoever else asks.

use std::collections::HashMap;

use crate::request::ClientId;

#[derive(Default)]
pub(super) struct Shares {
    shares: HashMap<ClientId, Share>,
}

struct Share {
    n_tokens: u64,
    /// It has a prompt to compute.
    is_waiting: bool,
}

impl Shares {
    /// Tells who has prompts to compute now: `clients`, in any order, each as often as it likes. Before every step.
    pub(super) fn attend(&mut self, clients: impl Iterator<Item = ClientId>) {
        let Some(least) = self.least() else {
            // Nobody had to share.
            let share = |client| (client, Share { n_tokens: 0, is_waiting: true });
            self.shares = clients.map(share).collect();
            return;
        };
        self.shares.values_mut().for_each(|share| share.is_waiting = false);
        for client in clients {
            let share = self.shares.entry(client).or_insert(Share { n_tokens: least, is_waiting: true });
            share.n_tokens = share.n_tokens.max(least);
            share.is_waiting = true;
        }
        // Where they would begin anyway.
        self.shares.retain(|_, share| share.is_waiting || share.n_tokens > least);
    }

    /// `n_tokens` of a prompt of `client` are computed.
    pub(super) fn charge(&mut self, client: ClientId, n_tokens: usize) {
        if let Some(share) = self.shares.get_mut(&client) {
            share.n_tokens += n_tokens as u64;
        }
    }

    /// What `client` had of late; says something beside another client's alone.
    pub(super) fn of(&self, client: ClientId) -> u64 {
        self.shares.get(&client).map_or_else(|| self.least().unwrap_or(0), |share| share.n_tokens)
    }

    /// What the least served had of those who wait, if anybody does.
    fn least(&self) -> Option<u64> {
        self.shares.values().filter(|share| share.is_waiting).map(|share| share.n_tokens).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Owner;

    fn clients() -> [ClientId; 3] {
        [1, 2, 3].map(|byte| Owner::Private([byte; 32]).client())
    }

    #[test]
    fn a_newcomer_begins_where_the_least_served_of_the_waiting_stands() {
        let [alice, bob, carol] = clients();
        let mut shares = Shares::default();
        shares.attend([alice, bob].into_iter());
        shares.charge(alice, 3_000);
        shares.charge(bob, 1_000);
        shares.attend([alice, bob, carol].into_iter());
        assert_eq!([alice, bob, carol].map(|client| shares.of(client)), [3_000, 1_000, 1_000]);
    }

    #[test]
    fn a_pause_forgives_nothing_while_others_wait() {
        let [alice, bob, _] = clients();
        let mut shares = Shares::default();
        shares.attend([alice, bob].into_iter());
        shares.charge(alice, 900);
        shares.charge(bob, 100);
        shares.attend([bob].into_iter());
        shares.attend([alice, bob].into_iter());
        assert_eq!((shares.of(alice), shares.of(bob)), (900, 100));
        // Nor does it earn anything.
        shares.attend([bob].into_iter());
        shares.charge(bob, 5_000);
        shares.attend([bob].into_iter());
        shares.attend([alice, bob].into_iter());
        assert_eq!((shares.of(alice), shares.of(bob)), (5_100, 5_100));
    }

    #[test]
    fn when_nobody_waits_all_are_equal_again() {
        let [alice, bob, _] = clients();
        let mut shares = Shares::default();
        shares.attend([alice].into_iter());
        shares.charge(alice, 6_000);
        shares.attend([].into_iter());
        shares.attend([alice, bob].into_iter());
        assert_eq!((shares.of(alice), shares.of(bob)), (0, 0));
    }
}
