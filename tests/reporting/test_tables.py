from fedaf.reporting.tables import audit_sentence

OLD = {
    "psnr_mean": 18.0,
    "psnr_max": 25.0,
    "from_source": 0.5,
    "held_out_psnr_mean": 16.0,
    "held_out_psnr_max": 22.0,
    "held_out_from_source": 0.4,
}


def test_the_sentence_on_copies_ends_with_the_share_that_stands_out():
    sentence = audit_sentence({"method": "fedaf", "copy_audit": {**OLD, "copied": 0.019}})
    assert sentence is not None
    assert "1.9 % of the shared images" in sentence


def test_a_run_from_before_copies_were_counted_still_has_its_sentence():
    sentence = audit_sentence({"method": "fedaf", "copy_audit": OLD})
    assert sentence is not None
    assert sentence.endswith("(40 % by chance).")
    assert audit_sentence({"method": "fedavg"}) is None
