//! What a drafter promises: only what was said before, in bounded memory, and only where it pays.

use proptest::prelude::*;

use super::*;

const END: Token = Token(0);

fn tokens(ids: &[i32]) -> Vec<Token> {
    ids.iter().copied().map(Token).collect()
}

fn drafter(tokens: &[Token]) -> Drafter {
    let mut drafter = Drafter::new(tokens.len());
    drafter.read(tokens, 0);
    drafter
}

fn draft(drafter: &Drafter, tokens: &[Token], n_max: usize, costs: &Costs) -> Vec<Token> {
    drafter.draft(tokens, n_max, costs, |token| token == END)
}

/// Costs as measured.
fn costs(ratios: [f64; LENGTHS.len()]) -> Costs {
    let mut costs = Costs::untried();
    (0..LENGTHS.len()).for_each(|length_idx| costs.measure(length_idx, ratios[length_idx]));
    costs
}

/// A drafter that knows its plain steps and was right, or wrong, for a long time.
fn experienced(tokens: &[Token], is_right: bool) -> Drafter {
    let mut drafter = drafter(tokens);
    drafter.likely = [f64::from(u8::from(is_right)); LIKELY.len()];
    drafter.plain = Some(0.01);
    drafter
}

/// Whether `tokens` went on with `draft` where its last three were seen before.
fn was_said(tokens: &[Token], draft: &[Token]) -> bool {
    let last = &tokens[tokens.len() - 3..];
    (3..tokens.len()).any(|source| tokens[source - 3..source] == *last && tokens[source..].starts_with(&draft[..1]))
}

proptest! {
    #[test]
    fn a_draft_is_what_followed_the_same_tokens_before(
        ids in proptest::collection::vec(0..4i32, 4..200), n_max in 0..40usize
    ) {
        let tokens = tokens(&ids);
        let drafted = draft(&drafter(&tokens), &tokens, n_max, &Costs::free());
        prop_assert!(drafted.len() <= n_max.min(15));
        prop_assert!(!drafted.contains(&END));
        if !drafted.is_empty() {
            prop_assert!(was_said(&tokens, &drafted), "{:?}", drafted);
        }
    }

    #[test]
    fn it_does_not_matter_in_how_many_pieces_a_text_is_read(
        ids in proptest::collection::vec(0..3i32, 1..150), cuts in proptest::collection::vec(0..150usize, 0..9), n_prompt in 0..60usize
    ) {
        let tokens = tokens(&ids);
        let [mut whole, mut pieces] = [Drafter::new(tokens.len()), Drafter::new(tokens.len())];
        whole.read(&tokens, n_prompt);
        let mut ends: Vec<usize> = cuts.into_iter().map(|cut| cut.min(tokens.len())).collect();
        ends.sort_unstable();
        ends.iter().chain([&tokens.len()]).for_each(|&end| pieces.read(&tokens[..end], n_prompt));
        prop_assert_eq!(&pieces.guess, &whole.guess);
        prop_assert_eq!(&pieces.likely, &whole.likely);
        prop_assert_eq!(&pieces.places, &whole.places);
    }

    #[test]
    fn nothing_is_drafted_at_a_cost_that_even_right_drafts_do_not_bring_in(
        ids in proptest::collection::vec(1..3i32, 10..100), loss in 1.0..3.0f64
    ) {
        let tokens = tokens(&ids);
        let costs = costs(LENGTHS.map(|length| (1 + length) as f64 * loss));
        prop_assert_eq!(draft(&experienced(&tokens, true), &tokens, 15, &costs), vec![]);
    }

    #[test]
    fn what_was_always_wrong_is_not_drafted_even_if_it_costs_nothing(ids in proptest::collection::vec(1..3i32, 10..100)) {
        let tokens = tokens(&ids);
        prop_assert_eq!(draft(&experienced(&tokens, false), &tokens, 15, &costs([1.0; 3])), vec![]);
    }
}

#[test]
fn what_repeats_is_drafted_as_it_goes_on() {
    for period in 1..40 {
        let endless = (1..=period).map(Token).cycle();
        // Three tokens more than one period: the first three have been seen again.
        let said: Vec<Token> = endless.clone().take(period as usize + 3).collect();
        let next: Vec<Token> = endless.skip(said.len()).take(15).collect();
        assert_eq!(draft(&experienced(&said, true), &said, 15, &Costs::free()), next, "period {period}");
    }
}

/// A hundred different tokens, then the first ten again.
fn ten_again() -> Vec<Token> {
    (1..=100).chain(1..=10).map(Token).collect()
}

#[test]
fn the_length_is_the_one_that_pays_best() {
    let tokens = ten_again();
    let mut drafter = experienced(&tokens, true);
    let check = |drafter: &Drafter, ratios, expected| {
        assert_eq!(draft(drafter, &tokens, 15, &costs(ratios)).len(), expected, "{ratios:?}");
    };
    // Two cores, a GPU, a machine whose kernels do well with four rows.
    check(&drafter, [3.2, 4.1, 7.5], 15);
    check(&drafter, [1.0, 1.0, 1.1], 15);
    check(&drafter, [1.0, 4.1, 7.5], 3);
    // 0.8 + 0.64 + … of seven tokens are 3.2, of fifteen 3.9.
    drafter.likely = [0.8; 4];
    check(&drafter, [3.2, 4.1, 7.5], 0);
    check(&drafter, [3.2, 3.0, 7.5], 7);
    check(&drafter, [1.0, 1.1, 1.3], 7);
}

#[test]
fn a_draft_ends_before_the_end_of_an_answer() {
    let tokens: Vec<Token> = tokens(&[7, 8, 9, 1, 2, 0, 7, 8, 9]);
    let drafted = draft(&experienced(&tokens, true), &tokens, 15, &costs([1.0; 3]));
    assert_eq!(drafted, [Token(1), Token(2)]);
}

#[test]
fn after_misses_nothing_is_drafted_until_guesses_are_right_again() {
    let costs = costs([1.0, 1.5, 2.0]);
    // Three tokens that are seen again and again, and each time something else follows.
    let mut said: Vec<Token> = (0..40).flat_map(|n| [1, 2, 3, 100 + n]).chain([1, 2, 3]).map(Token).collect();
    let mut drafter = drafter(&said);
    drafter.plain = Some(0.01);
    assert_eq!(draft(&drafter, &said, 15, &costs), []);
    // Now always the same: known without a draft.
    let mut n_shown = 0;
    while draft(&drafter, &said, 15, &costs).is_empty() {
        said.extend([139, 1, 2, 3].map(Token));
        drafter.read(&said, 0);
        n_shown += 4;
    }
    assert!((4..60).contains(&n_shown), "{n_shown}");
}

#[test]
fn how_a_prompt_repeats_itself_says_nothing_of_the_answer() {
    let tokens: Vec<Token> = [1, 2, 3, 4].into_iter().cycle().take(80).map(Token).collect();
    let mut drafter = Drafter::new(tokens.len());
    drafter.read(&tokens[..79], 79);
    assert_eq!(drafter.likely, LIKELY);
    drafter.read(&tokens, 79);
    assert_ne!(drafter.likely, LIKELY, "the first token of the answer is judged");
}

#[test]
fn an_answer_that_does_not_know_its_plain_steps_drafts_nothing() {
    let tokens = ten_again();
    let mut drafter = experienced(&tokens, true);
    drafter.plain = None;
    let mut costs = costs([1.0; 3]);
    assert_eq!(draft(&drafter, &tokens, 15, &costs), []);
    drafter.took(0, 0.01, &mut costs);
    assert_eq!(draft(&drafter, &tokens, 15, &costs).len(), 15);
}

#[test]
fn a_length_that_was_slow_once_is_tried_again_much_later() {
    let tokens = ten_again();
    let mut drafter = experienced(&tokens, true);
    let mut costs = costs([9.0, 9.0, 3.0]);
    drafter.took(15, 9.0, &mut costs);
    drafter.took(15, 9.0, &mut costs);
    assert_eq!(draft(&drafter, &tokens, 15, &costs), []);
    for _ in 0..=STALE {
        drafter.took(0, 0.01, &mut costs);
    }
    assert_eq!(draft(&drafter, &tokens, 15, &costs).len(), 15);
    // Its new measurement stands for itself.
    drafter.took(15, 0.03, &mut costs);
    assert!((costs.of(2, true) - 3.0).abs() < 1e-6);
}

#[test]
fn a_disturbed_measurement_is_hardly_believed_and_a_better_one_at_once() {
    let mut costs = costs([2.0; 3]);
    costs.measure(0, 10.0);
    assert!((costs.of(0, true) - 3.0).abs() < 1e-6);
    costs.measure(0, 1.5);
    assert!((costs.of(0, true) - 1.5).abs() < 1e-6);
}

#[test]
fn memory_is_bounded_however_long_the_text_becomes() {
    let long: Vec<Token> = (0..100_000).map(Token).collect();
    let mut drafter = Drafter::new(100);
    drafter.read(&long, 100);
    assert_eq!(drafter.places.len(), 1 << 10);
    assert_eq!(drafter.guess, None, "what shares a slot is not the same");
    assert_eq!(Drafter::new(1 << 20).places.len(), 1 << 16);
}
