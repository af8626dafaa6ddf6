//! Files that come, go, break and lie.

use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::kv::Piece;
use crate::request::Token;

const DAY: Duration = Duration::from_secs(24 * 3600);
const ALICE: Owner = Owner::Private([1; 32]);

fn identity(kv_type: &str) -> Identity {
    Identity::new(vec![("model", "m".to_owned()), ("kv_type", kv_type.to_owned())])
}

fn open(path: &Path) -> Folder {
    Folder::open(path.join("kv"), identity("f16"), Secret([7; 32])).unwrap()
}

fn segment(owner: Owner, kept: Kept, first: i32) -> Segment {
    let tokens: Vec<Token> = (first..first + 20).map(Token).collect();
    let bytes = (0..200).map(|byte| byte as u8).collect();
    Segment::new(owner.into(), kept, false, &tokens, 0, vec![Piece { n_tokens: 20, bytes }])
}

fn write(folder: &Folder, segment: &Segment) {
    folder.write(segment, &mut |_| ()).unwrap();
}

fn files(folder: &Folder) -> Vec<String> {
    let mut files: Vec<String> =
        fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    files.sort_unstable();
    files
}

#[test]
fn what_is_written_is_found_and_read_by_the_next_daemon() {
    let temp = tempfile::tempdir().unwrap();
    let folder = open(temp.path());
    let segment = segment(ALICE, Kept::Private, 0);
    let mut steps = Vec::new();
    let n_file_bytes = folder.write(&segment, &mut |step| steps.push(step)).unwrap();
    use WriteStep::*;
    assert_eq!(steps, [Created, Begun, Written, Synced, Renamed, FolderSynced]);

    drop(folder);
    let folder = open(temp.path());
    let swept = folder.sweep(SystemTime::now(), DAY).unwrap();
    assert_eq!(swept.dropped, []);
    let [found] = swept.found.as_slice() else { panic!("{swept:?}") };
    assert_eq!((&found.header, found.n_file_bytes), (&segment.header, n_file_bytes));
    assert_eq!(folder.read(segment.header.key).unwrap(), Some(segment));
}

#[test]
fn folder_and_files_are_their_users_alone() {
    let temp = tempfile::tempdir().unwrap();
    let folder = open(temp.path());
    let segment = segment(ALICE, Kept::Private, 0);
    write(&folder, &segment);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(folder.path()), 0o700);
    assert_eq!(mode(&folder.place(segment.header.key)), 0o600);
    assert!(
        fs::read_to_string(folder.path().join(TAG)).unwrap().starts_with("Signature: 8a477f597d28d172789f06886806bc55")
    );
}

#[test]
fn a_sweep_removes_what_is_not_whole_and_says_why() {
    let temp = tempfile::tempdir().unwrap();
    let folder = open(temp.path());
    let [good, cut, renamed] = [0, 1, 2].map(|first| segment(ALICE, Kept::Private, first));
    for segment in [&good, &cut, &renamed] {
        write(&folder, segment);
    }
    let cut = folder.place(cut.header.key);
    let bytes = fs::read(&cut).unwrap();
    fs::write(&cut, &bytes[..bytes.len() / 2]).unwrap();
    fs::rename(folder.place(renamed.header.key), folder.path().join("0".repeat(64)).with_extension(ENDING)).unwrap();
    fs::write(folder.path().join("half.tmp"), "half").unwrap();
    fs::write(folder.path().join("empty.kv"), "").unwrap();
    fs::create_dir(folder.path().join("folder.kv")).unwrap();

    let swept = folder.sweep(SystemTime::now(), DAY).unwrap();
    assert_eq!(swept.found.iter().map(|found| found.header.key).collect::<Vec<_>>(), [good.header.key]);
    assert_eq!(swept.dropped.len(), 5, "{swept:?}");
    let reason = |start: &str| &swept.dropped.iter().find(|dropped| dropped.file.starts_with(start)).unwrap().reason;
    assert_eq!(reason("empty"), "it ends after 0 bytes, inside its first bytes");
    assert_eq!(reason("000"), "its name is not that of what it holds");
    assert_eq!(files(&folder), [format!("{}.kv", good.header.key.hex()), TAG.to_owned()]);
}

#[test]
fn what_was_long_not_used_goes_but_for_pins() {
    let temp = tempfile::tempdir().unwrap();
    let folder = open(temp.path());
    let (private, learned) = (segment(ALICE, Kept::Private, 0), segment(ALICE, Kept::Learned, 1));
    let (pin, used) = (segment(Owner::Public, Kept::Pin, 2), segment(ALICE, Kept::Private, 3));
    for segment in [&private, &learned, &pin, &used] {
        write(&folder, segment);
    }
    let later = SystemTime::now() + 8 * DAY;
    folder.touch(used.header.key, later - DAY).unwrap();
    let swept = folder.sweep(later, 7 * DAY).unwrap();
    let mut found: Vec<SegmentKey> = swept.found.iter().map(|found| found.header.key).collect();
    found.sort_unstable();
    let mut kept = [pin.header.key, used.header.key];
    kept.sort_unstable();
    assert_eq!(found, kept);
    assert_eq!(swept.dropped[0].reason, "it was not used for 8 days");
    assert_eq!(swept.dropped[0].because, Because::Old);
}

#[test]
fn another_kv_type_finds_nothing_and_is_told_what_there_was() {
    let temp = tempfile::tempdir().unwrap();
    let segment = segment(ALICE, Kept::Private, 0);
    write(&open(temp.path()), &segment);
    let folder = Folder::open(temp.path().join("kv"), identity("q8_0"), Secret([7; 32])).unwrap();
    let swept = folder.sweep(SystemTime::now(), DAY).unwrap();
    assert_eq!(swept.found, []);
    let [dropped] = swept.dropped.as_slice() else { panic!("{swept:?}") };
    assert_eq!(dropped.reason, "it was written with kv_type f16, this is kv_type q8_0");
    assert_eq!(dropped.because, Because::Changed("kv_type".to_owned()));
    assert_eq!(dropped.header.as_deref(), Some(&segment.header));
    assert_eq!(files(&folder), [TAG]);
}

#[test]
fn a_file_that_broke_since_the_sweep_is_refused_and_goes() {
    let temp = tempfile::tempdir().unwrap();
    let folder = open(temp.path());
    let segment = segment(ALICE, Kept::Private, 0);
    write(&folder, &segment);
    let path = folder.place(segment.header.key);
    let mut bytes = fs::read(&path).unwrap();
    let place = bytes.len() - 40;
    bytes[place] ^= 1;
    fs::write(&path, bytes).unwrap();
    assert_eq!(folder.read(segment.header.key).unwrap_err().to_string(), "its K/V is damaged");
    assert!(!path.exists());
    assert_eq!(folder.read(segment.header.key).unwrap(), None, "gone is no fault");
    folder.remove(segment.header.key).unwrap();
    folder.touch(segment.header.key, SystemTime::now()).unwrap();
}

#[test]
fn to_forget_somebody_leaves_the_others() {
    let temp = tempfile::tempdir().unwrap();
    let folder = open(temp.path());
    let bob = Owner::Private([2; 32]);
    let mut with_salt = [1; 32];
    with_salt[31] = 9;
    let with_salt = Owner::Private(with_salt);
    let segments =
        [(ALICE, Kept::Private), (with_salt, Kept::Learned), (bob, Kept::Private), (Owner::Public, Kept::Pin)];
    let segments: Vec<Segment> =
        segments.iter().zip(0..).map(|(&(owner, kept), first)| segment(owner, kept, first)).collect();
    for segment in &segments {
        write(&folder, segment);
    }
    let mut gone = folder.forget(Some(ALICE)).unwrap();
    gone.sort_unstable();
    let mut hers = [segments[0].header.key, segments[1].header.key];
    hers.sort_unstable();
    assert_eq!(gone, hers);
    let left = folder.sweep(SystemTime::now(), DAY).unwrap();
    assert_eq!((left.found.len(), left.dropped.len()), (2, 0));
    assert_eq!(folder.forget(None).unwrap(), [segments[2].header.key], "what is the house's stays");
    assert_eq!(files(&folder).len(), 2);
}

#[test]
fn a_failed_write_leaves_what_was_there() {
    let temp = tempfile::tempdir().unwrap();
    let folder = open(temp.path());
    let segment = segment(ALICE, Kept::Private, 0);
    write(&folder, &segment);
    // A folder in the temporary file's place: nothing can be created there, whoever the user is.
    fs::create_dir(folder.place(segment.header.key).with_extension(crate::private::TEMPORARY)).unwrap();
    assert!(folder.write(&segment, &mut |_| ()).is_err());
    assert_eq!(folder.read(segment.header.key).unwrap(), Some(segment));
}

#[test]
fn a_folder_in_use_is_refused_until_it_is_free() {
    let temp = tempfile::tempdir().unwrap();
    let folder = open(temp.path());
    let again = || Folder::open(temp.path().join("kv"), identity("f16"), Secret([7; 32]));
    let error = again().err().expect("it is in use").to_string();
    assert!(error.starts_with("another hob that runs uses this folder"), "{error}");
    drop(folder);
    assert!(again().is_ok());
}
