// SPDX-License-Identifier: GPL-2.0
/*
 * A VF with the files that NVIDIA's driver has on kernels from 6.8 on, in its folder nvidia/. It is a VFIO device that
 * can be opened once a type is set. A board holds one size of vGPU at a time, as many as its frame buffer has room for.
 * Source: NVIDIA Virtual GPU Software User Guide, "Vendor-Specific VFIO Framework"; error numbers as its driver gives.
 */
#include <linux/module.h>
#include <linux/version.h>
#include <linux/vfio_pci_core.h>
#include "labgpu.h"

struct labgpu_vf {
	struct vfio_pci_core_device core;	/* first: drvdata is the core device */
	struct list_head others;
	const struct labgpu_kind *kind;
	bool opened;
};

static LIST_HEAD(labgpu_vfs);
static DEFINE_MUTEX(labgpu_lock);

static bool labgpu_fits(struct labgpu_vf *gpu, const struct labgpu_kind *kind)
{
	unsigned int left = LABGPU_BOARD_MIB;
	struct labgpu_vf *other;

	list_for_each_entry(other, &labgpu_vfs, others) {
		if (!other->kind || pci_physfn(other->core.pdev) != pci_physfn(gpu->core.pdev))
			continue;
		if (other->kind->mib != kind->mib)
			return false;
		left -= kind->mib;
	}
	return left >= kind->mib;
}

static ssize_t creatable_vgpu_types_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	struct labgpu_vf *gpu = dev_get_drvdata(dev);
	ssize_t at = sysfs_emit(buf, "ID    : vGPU Name\n");
	unsigned int i;

	mutex_lock(&labgpu_lock);
	for (i = 0; i < LABGPU_KINDS && !gpu->kind; i++)
		if (labgpu_fits(gpu, &labgpu_kinds[i]))
			at += sysfs_emit_at(buf, at, "%-5u : NVIDIA %s\n", labgpu_kinds[i].id, labgpu_kinds[i].name);
	mutex_unlock(&labgpu_lock);
	return at;
}

static ssize_t current_vgpu_type_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	struct labgpu_vf *gpu = dev_get_drvdata(dev);

	return sysfs_emit(buf, "%u\n", gpu->kind ? gpu->kind->id : 0);
}

static int labgpu_set(struct labgpu_vf *gpu, long id)
{
	unsigned int i;

	if (!id == !gpu->kind)
		return -EPERM;
	if (gpu->opened)
		return -EBUSY;
	for (i = 0; i < LABGPU_KINDS && id; i++)
		if (labgpu_kinds[i].id == id && labgpu_fits(gpu, &labgpu_kinds[i])) {
			gpu->kind = &labgpu_kinds[i];
			return 0;
		}
	if (id)
		return -EIO;
	gpu->kind = NULL;
	return 0;
}

static ssize_t current_vgpu_type_store(struct device *dev, struct device_attribute *attr, const char *buf, size_t len)
{
	long id;
	int ret = kstrtol(buf, 10, &id);

	if (ret)
		return ret;
	mutex_lock(&labgpu_lock);
	ret = labgpu_set(dev_get_drvdata(dev), id);
	mutex_unlock(&labgpu_lock);
	return ret ?: len;
}

static DEVICE_ATTR_RO(creatable_vgpu_types);
static DEVICE_ATTR_RW(current_vgpu_type);
static struct attribute *labgpu_attrs[] = { &dev_attr_creatable_vgpu_types.attr, &dev_attr_current_vgpu_type.attr, NULL };
static const struct attribute_group labgpu_group = { .name = "nvidia", .attrs = labgpu_attrs };

static int labgpu_open(struct vfio_device *vdev)
{
	struct labgpu_vf *gpu = container_of(vdev, struct labgpu_vf, core.vdev);
	int ret = -ENODEV;

	mutex_lock(&labgpu_lock);
	if (gpu->kind)
		ret = vfio_pci_core_enable(&gpu->core);
	gpu->opened = !ret;
	mutex_unlock(&labgpu_lock);
	if (!ret)
		vfio_pci_core_finish_enable(&gpu->core);
	return ret;
}

static void labgpu_close(struct vfio_device *vdev)
{
	struct labgpu_vf *gpu = container_of(vdev, struct labgpu_vf, core.vdev);

	vfio_pci_core_close_device(vdev);
	gpu->opened = false;
}

static const struct vfio_device_ops labgpu_ops = {
	.name = "nvidia-vgpu-vfio",
	.init = vfio_pci_core_init_dev,
	.release = vfio_pci_core_release_dev,
	.open_device = labgpu_open,
	.close_device = labgpu_close,
	.ioctl = vfio_pci_core_ioctl,
	.device_feature = vfio_pci_core_ioctl_feature,
	.read = vfio_pci_core_read,
	.write = vfio_pci_core_write,
	.mmap = vfio_pci_core_mmap,
	.request = vfio_pci_core_request,
	.match = vfio_pci_core_match,
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 6, 0)
	.bind_iommufd = vfio_iommufd_physical_bind,
	.unbind_iommufd = vfio_iommufd_physical_unbind,
	.attach_ioas = vfio_iommufd_physical_attach_ioas,
	.detach_ioas = vfio_iommufd_physical_detach_ioas,
#endif
};

int labgpu_vfio_probe(struct pci_dev *vf)
{
	struct labgpu_vf *gpu = vfio_alloc_device(labgpu_vf, core.vdev, &vf->dev, &labgpu_ops);
	int ret;

	if (IS_ERR(gpu))
		return PTR_ERR(gpu);
	pci_set_drvdata(vf, &gpu->core);
	ret = vfio_pci_core_register_device(&gpu->core);
	if (ret)
		goto put;
	mutex_lock(&labgpu_lock);
	list_add(&gpu->others, &labgpu_vfs);
	mutex_unlock(&labgpu_lock);
	ret = sysfs_create_group(&vf->dev.kobj, &labgpu_group);
	if (!ret)
		return 0;
	mutex_lock(&labgpu_lock);
	list_del(&gpu->others);
	mutex_unlock(&labgpu_lock);
	vfio_pci_core_unregister_device(&gpu->core);
put:
	vfio_put_device(&gpu->core.vdev);
	return ret;
}

void labgpu_vfio_remove(struct pci_dev *vf)
{
	struct labgpu_vf *gpu = pci_get_drvdata(vf);

	sysfs_remove_group(&vf->dev.kobj, &labgpu_group);
	vfio_pci_core_unregister_device(&gpu->core);
	mutex_lock(&labgpu_lock);
	list_del(&gpu->others);
	mutex_unlock(&labgpu_lock);
	vfio_put_device(&gpu->core.vdev);
}
