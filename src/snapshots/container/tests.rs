//! The reader against every way a small file can be wrong.

use super::*;

const SECRET: Secret = Secret([7; 32]);

fn identity() -> Identity {
    Identity::new(vec![("model", "m".to_owned()), ("kv_type", "f16".to_owned())])
        .with_adapters(adapters(["a", "b", "c"]))
}

/// The hashes of adapters' files.
fn adapters<const N: usize>(files: [&str; N]) -> Vec<blake3::Hash> {
    files.map(|file| blake3::hash(file.as_bytes())).to_vec()
}

fn segment(is_whole: bool) -> Segment {
    let tokens: Vec<Token> = (0..40).map(Token).collect();
    let start = if is_whole { 0 } else { 10 };
    let piece = |n_tokens: usize| Piece { n_tokens, bytes: (0..n_tokens * 9).map(|byte| byte as u8).collect() };
    let pieces = if is_whole { vec![piece(40)] } else { vec![piece(16), piece(14)] };
    let adapters = AdapterSet::NONE.with(0, Scale::ONE).with(2, Scale::new(-0.5).unwrap());
    let holder = Holder { owner: Owner::Private([3; 32]), adapters };
    Segment::new(holder, Kept::Learned, is_whole, &tokens, start, pieces)
}

fn file(segment: &Segment) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(segment, &identity(), &SECRET, &mut bytes).unwrap();
    bytes
}

fn read_bytes(bytes: &[u8]) -> Result<Segment, Refused> {
    read(&mut &*bytes, bytes.len() as u64, &identity(), &SECRET)
}

#[test]
fn what_is_written_is_read() {
    for is_whole in [false, true] {
        let segment = segment(is_whole);
        let bytes = file(&segment);
        assert_eq!(bytes.len() as u64, n_file_bytes(&segment.header, &identity()), "its size is known before");
        assert_eq!(read_bytes(&bytes).unwrap(), segment);
        let header = read_header(&mut bytes.as_slice(), bytes.len() as u64, &identity(), &SECRET).unwrap();
        assert_eq!(header, segment.header);
    }
}

#[test]
fn a_file_cut_short_anywhere_is_refused() {
    let bytes = file(&segment(false));
    for n in 0..bytes.len() {
        assert!(read_bytes(&bytes[..n]).is_err(), "cut to {n} of {} bytes", bytes.len());
        // The length that the folder tells may be older than the bytes.
        assert!(
            read(&mut &bytes[..n], bytes.len() as u64, &identity(), &SECRET).is_err(),
            "cut to {n}, said to be whole"
        );
    }
    let longer = [bytes.as_slice(), &[0]].concat();
    assert!(matches!(read_bytes(&longer).unwrap_err().fault, Fault::Length { .. }));
}

#[test]
fn every_flipped_bit_is_noticed() {
    let bytes = file(&segment(false));
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(read_bytes(&flipped).is_err(), "bit {bit}");
    }
}

#[test]
fn the_header_alone_tells_every_flip_in_front_of_the_kv() {
    let segment = segment(false);
    let bytes = file(&segment);
    let n_front = bytes.len() - segment.header.n_bytes() - HASH_BYTES;
    for bit in 0..n_front * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let refused = read_header(&mut flipped.as_slice(), flipped.len() as u64, &identity(), &SECRET);
        assert!(refused.is_err(), "bit {bit}");
    }
}

#[test]
fn noise_and_emptiness_are_refused_without_allocating_for_them() {
    let mut rng = fastrand::Rng::with_seed(5);
    for n in 0..300 {
        let noise: Vec<u8> = (0..n).map(|_| rng.u8(..)).collect();
        assert!(read_bytes(&noise).is_err());
        // What claims to be ours, with lengths at random.
        let claimed = [MAGIC.as_slice(), &noise].concat();
        assert!(read_bytes(&claimed).is_err());
    }
}

#[test]
fn another_houses_file_is_refused() {
    let bytes = file(&segment(false));
    let refused = read(&mut bytes.as_slice(), bytes.len() as u64, &identity(), &Secret([8; 32])).unwrap_err();
    assert!(matches!(refused.fault, Fault::Header), "{}", refused.fault);
}

#[test]
fn a_file_of_another_identity_says_what_has_changed_and_what_it_held() {
    let segment = segment(false);
    let bytes = file(&segment);
    let now = Identity::new(vec![("model", "m".to_owned()), ("kv_type", "q8_0".to_owned())]);
    let refused = read(&mut bytes.as_slice(), bytes.len() as u64, &now, &SECRET).unwrap_err();
    assert_eq!(refused.fault.to_string(), "it was written with kv_type f16, this is kv_type q8_0");
    assert_eq!(*refused.header.unwrap(), segment.header);
}

#[test]
fn what_was_computed_under_another_adapter_is_refused_and_under_those_that_are_here_it_is_not() {
    let segment = segment(false);
    let bytes = file(&segment);
    let read_as = |files: Vec<blake3::Hash>| {
        read(&mut bytes.as_slice(), bytes.len() as u64, &identity().with_adapters(files), &SECRET)
    };
    assert_eq!(read_as(adapters(["a", "another", "c", "new"])).unwrap(), segment, "the second one has no part in it");
    for files in [adapters(["b", "a", "c"]), adapters(["a", "b", "d"])] {
        let refused = read_as(files).unwrap_err();
        assert!(refused.fault.to_string().starts_with("it was written with adapter "), "{}", refused.fault);
        assert_eq!(*refused.header.unwrap(), segment.header);
    }
    let gone = read_as(adapters(["a", "b"])).unwrap_err().fault.to_string();
    assert!(gone.ends_with(", this is adapter none"), "{gone}");
}

#[test]
fn a_header_that_contradicts_itself_is_refused_though_its_hash_is_right() {
    let good = segment(false);
    let contradictions: [fn(&mut Header); 6] = [
        |header| header.holder.adapters = AdapterSet::NONE,
        |header| header.key = SegmentKey([0; 32]),
        |header| header.tokens = [Token(1)].into(),
        |header| header.pieces = [].into(),
        |header| header.is_whole = true,
        |header| header.start = usize::MAX,
    ];
    for (number, contradict) in contradictions.into_iter().enumerate() {
        let mut bad = good.clone();
        contradict(&mut bad.header);
        let refused = read_bytes(&file(&bad)).unwrap_err();
        assert!(matches!(refused.fault, Fault::Header), "{number}: {}", refused.fault);
    }
}
