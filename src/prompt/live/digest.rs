//! A digest: 128 bits of BLAKE3, by which texts are told apart without being kept.
//!
//! It says whether two texts are equal, and nothing about what they hold.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(in crate::prompt) struct Digest([u8; 16]);

impl Digest {
    pub(in crate::prompt) fn of(bytes: &[u8]) -> Digest {
        Digest::cut(&blake3::hash(bytes))
    }

    /// Of an owner's id, so that it still tells its client, whatever the salt.
    pub(in crate::prompt) fn of_owner(id: &[u8; 32]) -> Digest {
        let (client, all) = (Digest::of(&id[..16]), Digest::of(id));
        let mut bytes = client.0;
        bytes[8..].copy_from_slice(&all.0[8..]);
        Digest(bytes)
    }

    /// Whether both are owners' and of one client. 64 bits tell a house's clients apart.
    pub(in crate::prompt) fn is_client_of(self, other: Digest) -> bool {
        self.0[..8] == other.0[..8]
    }

    /// What `hasher` has read up to now.
    pub(in crate::prompt) fn so_far(hasher: &blake3::Hasher) -> Digest {
        Digest::cut(&hasher.finalize())
    }

    pub(in crate::prompt) fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn cut(hash: &blake3::Hash) -> Digest {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hash.as_bytes()[..16]);
        Digest(bytes)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{:032x}", u128::from_be_bytes(self.0)))
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Digest, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        let number = u128::from_str_radix(&text, 16).map_err(serde::de::Error::custom)?;
        Ok(Digest(number.to_be_bytes()))
    }
}
