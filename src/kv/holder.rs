//! Holders: whose a held prefix is, and under which adapters it was computed.
//!
//! Every prefix has one holder from its first token on, so that each adapter set has roots of its own, in the cells and in every
//! tier: what one set computed is wrong for every other, whoever asks.

use crate::request::{AdapterSet, Owner};

/// See the module's head.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Holder {
    pub owner: Owner,
    pub adapters: AdapterSet,
}

impl Holder {
    /// Everybody, under no adapter.
    pub const HOUSE: Holder = Holder::bare(Owner::Public);

    /// Under no adapter.
    pub const fn bare(owner: Owner) -> Holder {
        Holder { owner, adapters: AdapterSet::NONE }
    }

    /// Whether a request of `self` may use what `held_by` left.
    pub fn may_see(self, held_by: Holder) -> bool {
        self.adapters == held_by.adapters && self.owner.may_see(held_by.owner)
    }

    /// Whether it could use that, were it not for the adapters.
    pub(super) fn would_see(self, held_by: Holder) -> bool {
        self.adapters != held_by.adapters && self.owner.may_see(held_by.owner)
    }

    pub fn is_house(self) -> bool {
        self.owner == Owner::Public
    }

    /// Everybody, under the same adapters.
    pub fn house(self) -> Holder {
        Holder { owner: Owner::Public, ..self }
    }

    /// Tells holders apart, for those who hash what they hold.
    pub(super) fn hash(self, hasher: &mut blake3::Hasher) {
        match self.owner {
            Owner::Public => hasher.update(&[0; 33]),
            Owner::Private(id) => hasher.update(&[1]).update(&id),
        };
        hasher.update(&[self.adapters.parts().count() as u8]);
        for (index, scale) in self.adapters.parts() {
            hasher.update(&[index as u8]).update(&scale.get().to_le_bytes());
        }
    }
}

/// Under no adapter.
impl From<Owner> for Holder {
    fn from(owner: Owner) -> Holder {
        Holder::bare(owner)
    }
}
