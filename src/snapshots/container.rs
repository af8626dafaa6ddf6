//! The container: a segment as the bytes of a file.
//!
//! ```text
//! offset  bytes
//!      0      8  magic, the last byte of it the format's version
//!      8      4  n, little-endian like all numbers here
//!     12      n  header: identity, key, owner, adapters, tokens, sizes of the pieces
//!   12+n     32  keyed BLAKE3 of all before: what is listed at the start is verified without reading the K/V
//!   44+n      m  the pieces, one after the other
//! 44+n+m     32  keyed BLAKE3 of all before
//! ```
//!
//! The key makes a file that somebody planted, or brought from another house, as wrong as a damaged one: llama.cpp checks
//! shapes at most, and a position that it believes can abort it. Nothing here opens files.

use std::io::{self, Read, Write};
use std::sync::Arc;

use super::identity::{Identity, Mismatch};
use crate::kv::{Header, Holder, Kept, Piece, PieceSize, PrefixHash, Segment, SegmentKey};
use crate::request::{AdapterSet, N_ADAPTERS_MAX, Owner, Scale, Token};

const MAGIC: [u8; 8] = *b"hob kv \x02";
const HASH_BYTES: usize = 32;
/// Magic and the header's length.
const FRONT_BYTES: usize = 12;
/// A header of a million tokens; above it the length is not one of ours, and nothing is allocated for it.
const HEADER_BYTES_MAX: usize = 8 << 20;

/// By which this house's own files are told from others.
#[derive(Clone)]
pub struct Secret(pub [u8; 32]);

/// What is wrong with a file. Whatever it is: it is a miss, and the file goes.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    #[error("it ends after {n_bytes} bytes, inside its {part}")]
    Short { n_bytes: u64, part: &'static str },
    #[error("it is no K/V file of this version")]
    Magic,
    #[error("its header is damaged, or was not written by this house")]
    Header,
    #[error("it has {found} bytes, its header says {expected}")]
    Length { expected: u64, found: u64 },
    #[error("its K/V is damaged")]
    Damaged,
    #[error(transparent)]
    Identity(#[from] Mismatch),
    #[error("its name is not that of what it holds")]
    Name,
    #[error("it cannot be read: {0}")]
    Io(#[from] io::Error),
}

/// Bytes of the whole file for `header`. What is known before anything is allocated or written.
pub fn n_file_bytes(header: &Header, identity: &Identity) -> u64 {
    let n_header = encode_header(header, identity).len();
    (FRONT_BYTES + n_header + 2 * HASH_BYTES + header.n_bytes()) as u64
}

/// Writes `segment` as `identity`'s.
pub fn write(segment: &Segment, identity: &Identity, secret: &Secret, out: &mut impl Write) -> io::Result<()> {
    let header = encode_header(&segment.header, identity);
    let mut hasher = blake3::Hasher::new_keyed(&secret.0);
    let mut put = |hasher: &mut blake3::Hasher, bytes: &[u8]| {
        hasher.update(bytes);
        out.write_all(bytes)
    };
    put(&mut hasher, &MAGIC)?;
    let n_header = u32::try_from(header.len()).expect("a header has a few bytes per token of a context");
    put(&mut hasher, &n_header.to_le_bytes())?;
    put(&mut hasher, &header)?;
    let of_header = hasher.finalize();
    put(&mut hasher, of_header.as_bytes())?;
    for piece in segment.pieces.iter() {
        put(&mut hasher, &piece.bytes)?;
    }
    let of_all = hasher.finalize();
    put(&mut hasher, of_all.as_bytes())
}

/// Reads and verifies the header of a file of `n_file_bytes`, its K/V unread.
pub fn read_header(
    input: &mut impl Read,
    n_file_bytes: u64,
    identity: &Identity,
    secret: &Secret,
) -> Result<Header, Refused> {
    Ok(read_front(input, n_file_bytes, identity, secret)?.0)
}

/// Reads a file of `n_file_bytes` and verifies every byte of it.
pub fn read(
    input: &mut impl Read,
    n_file_bytes: u64,
    identity: &Identity,
    secret: &Secret,
) -> Result<Segment, Refused> {
    let (header, mut hasher) = read_front(input, n_file_bytes, identity, secret)?;
    let refused = |fault: Fault| Refused { fault, header: None };
    let mut pieces = Vec::with_capacity(header.pieces.len());
    for size in header.pieces.iter() {
        // The sum of all was compared with the file's length.
        let mut bytes = vec![0; size.n_bytes].into_boxed_slice();
        fill(input, &mut bytes, n_file_bytes, "K/V").map_err(refused)?;
        hasher.update(&bytes);
        pieces.push(Piece { n_tokens: size.n_tokens, bytes });
    }
    let mut hash = [0; HASH_BYTES];
    fill(input, &mut hash, n_file_bytes, "last hash").map_err(refused)?;
    // `blake3::Hash` compares in constant time.
    match hasher.finalize() == hash {
        true => Ok(Segment { header, pieces: pieces.into() }),
        false => Err(Refused { fault: Fault::Damaged, header: None }),
    }
}

/// A file that is not used. `header`: what it held, where that much of it is our own and whole, so that a miss can be explained.
#[derive(Debug)]
pub struct Refused {
    pub fault: Fault,
    pub header: Option<Box<Header>>,
}

fn read_front(
    input: &mut impl Read,
    n_file_bytes: u64,
    identity: &Identity,
    secret: &Secret,
) -> Result<(Header, blake3::Hasher), Refused> {
    let refused = |fault: Fault| Refused { fault, header: None };
    let mut front = [0; FRONT_BYTES];
    fill(input, &mut front, n_file_bytes, "first bytes").map_err(refused)?;
    if front[..8] != MAGIC {
        return Err(refused(Fault::Magic));
    }
    let n_header = u32::from_le_bytes(front[8..].try_into().expect("four bytes")) as usize;
    if n_header > HEADER_BYTES_MAX {
        return Err(refused(Fault::Header));
    }
    if n_file_bytes < (FRONT_BYTES + n_header + 2 * HASH_BYTES) as u64 {
        return Err(refused(Fault::Short { n_bytes: n_file_bytes, part: "header" }));
    }
    let mut bytes = vec![0; n_header];
    fill(input, &mut bytes, n_file_bytes, "header").map_err(refused)?;
    let mut hash = [0; HASH_BYTES];
    fill(input, &mut hash, n_file_bytes, "header's hash").map_err(refused)?;
    let mut hasher = blake3::Hasher::new_keyed(&secret.0);
    hasher.update(&front).update(&bytes);
    if hasher.finalize() != hash {
        return Err(refused(Fault::Header));
    }
    hasher.update(&hash);
    let (header, written_as, adapters) = decode_header(&bytes).ok_or_else(|| refused(Fault::Header))?;
    let other_adapter = || adapters.iter().find_map(|(index, file)| identity.other_adapter(*index, file));
    if let Some(mismatch) = identity.mismatch(&written_as).or_else(other_adapter) {
        return Err(Refused { fault: Fault::Identity(mismatch), header: Some(Box::new(header)) });
    }
    let expected = (FRONT_BYTES + n_header + 2 * HASH_BYTES + header.n_bytes()) as u64;
    match expected == n_file_bytes {
        true => Ok((header, hasher)),
        false => {
            Err(Refused { fault: Fault::Length { expected, found: n_file_bytes }, header: Some(Box::new(header)) })
        }
    }
}

fn fill(input: &mut impl Read, bytes: &mut [u8], n_file_bytes: u64, part: &'static str) -> Result<(), Fault> {
    input.read_exact(bytes).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => Fault::Short { n_bytes: n_file_bytes, part },
        _ => Fault::Io(error),
    })
}

fn encode_header(header: &Header, identity: &Identity) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(256 + 4 * header.tokens.len() + 12 * header.pieces.len());
    let count = |n: usize| u32::try_from(n).expect("counts of a context fit into 32 bits").to_le_bytes();
    let written_as = identity.text();
    bytes.extend(count(written_as.len()));
    bytes.extend(written_as.as_bytes());
    bytes.extend(header.key.0);
    match header.holder.owner {
        Owner::Public => bytes.extend([0; 33]),
        Owner::Private(id) => {
            bytes.push(1);
            bytes.extend(id);
        }
    }
    // An adapter is named by its file, since another one may stand in its place tomorrow.
    let adapters = header.holder.adapters;
    bytes.push(adapters.parts().count() as u8);
    for (index, scale) in adapters.parts() {
        bytes.push(index as u8);
        bytes.extend(scale.get().to_le_bytes());
        bytes.extend(
            identity.adapter(index).expect("each adapter in force was named when the folder was opened").as_bytes(),
        );
    }
    bytes.push(match header.kept {
        Kept::Pin => 0,
        Kept::Learned => 1,
        Kept::Private => 2,
    });
    bytes.push(u8::from(header.is_whole));
    bytes.extend((header.start as u64).to_le_bytes());
    bytes.extend(header.prefix.0);
    bytes.extend(count(header.tokens.len()));
    bytes.extend(header.tokens.iter().flat_map(|token| token.0.to_le_bytes()));
    bytes.extend(count(header.pieces.len()));
    for piece in header.pieces.iter() {
        bytes.extend(count(piece.n_tokens));
        bytes.extend((piece.n_bytes as u64).to_le_bytes());
    }
    bytes
}

/// The header, the identity it was written as, and the files of its adapters; `None`: it is not one that `encode_header` makes.
fn decode_header(bytes: &[u8]) -> Option<(Header, String, AdapterFiles)> {
    let mut rest = bytes;
    let n_identity = take_count(&mut rest)?;
    let written_as = String::from_utf8(take(&mut rest, n_identity)?.to_vec()).ok()?;
    let key = SegmentKey(take_hash(&mut rest)?);
    let is_private = take(&mut rest, 1)?[0];
    let id = take_hash(&mut rest)?;
    let owner = match is_private {
        0 => Owner::Public,
        1 => Owner::Private(id),
        _ => return None,
    };
    let (adapters, files) = take_adapters(&mut rest)?;
    let holder = Holder { owner, adapters };
    let kept = match take(&mut rest, 1)?[0] {
        0 => Kept::Pin,
        1 => Kept::Learned,
        2 => Kept::Private,
        _ => return None,
    };
    let is_whole = match take(&mut rest, 1)?[0] {
        0 => false,
        1 => true,
        _ => return None,
    };
    let start = take_number(&mut rest)?;
    let prefix = PrefixHash(take_hash(&mut rest)?);
    let n_tokens = take_count(&mut rest)?;
    let tokens = take(&mut rest, n_tokens.checked_mul(4)?)?;
    let tokens: Arc<[Token]> =
        tokens.chunks_exact(4).map(|token| Token(i32::from_le_bytes(token.try_into().expect("four bytes")))).collect();
    let n_pieces = take_count(&mut rest)?;
    let mut pieces = Vec::new();
    for _ in 0..n_pieces {
        let n_tokens = take_count(&mut rest)?;
        pieces.push(PieceSize { n_tokens, n_bytes: take_number(&mut rest)? });
    }
    let sum =
        |size: fn(&PieceSize) -> usize| pieces.iter().try_fold(0_usize, |sum, piece| sum.checked_add(size(piece)));
    let is_sound = rest.is_empty()
        && key == SegmentKey::of(holder, is_whole, prefix, &tokens)
        && sum(|piece| piece.n_tokens) == Some(tokens.len())
        && sum(|piece| piece.n_bytes).is_some()
        && start.checked_add(tokens.len()).is_some()
        && (!is_whole || (start == 0 && pieces.len() == 1));
    let header = Header { key, holder, kept, is_whole, start, prefix, tokens, pieces: pieces.into() };
    is_sound.then_some((header, written_as, files))
}

/// The hash of each adapter's file, by its number.
type AdapterFiles = Vec<(usize, blake3::Hash)>;

/// A set, and the file of each adapter in it.
fn take_adapters(rest: &mut &[u8]) -> Option<(AdapterSet, AdapterFiles)> {
    let (mut set, mut files) = (AdapterSet::NONE, Vec::new());
    for _ in 0..take(rest, 1)?[0] {
        let index = usize::from(take(rest, 1)?[0]);
        let scale = Scale::new(f32::from_le_bytes(take(rest, 4)?.try_into().ok()?))?;
        if index >= N_ADAPTERS_MAX {
            return None;
        }
        set = set.with(index, scale);
        files.push((index, blake3::Hash::from_bytes(take_hash(rest)?)));
    }
    Some((set, files))
}

fn take<'a>(rest: &mut &'a [u8], n: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(n)?;
    *rest = left;
    Some(taken)
}

fn take_hash(rest: &mut &[u8]) -> Option<[u8; 32]> {
    take(rest, 32)?.try_into().ok()
}

fn take_count(rest: &mut &[u8]) -> Option<usize> {
    Some(u32::from_le_bytes(take(rest, 4)?.try_into().ok()?) as usize)
}

fn take_number(rest: &mut &[u8]) -> Option<usize> {
    usize::try_from(u64::from_le_bytes(take(rest, 8)?.try_into().ok()?)).ok()
}

#[cfg(test)]
mod tests;
